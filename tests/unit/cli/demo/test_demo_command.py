"""`breakeven demo` against a server that speaks the gateway's protocol over real HTTP, and against none."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from contextlib import contextmanager

import aiohttp
import pytest
from aiohttp import web
from click.testing import CliRunner

from cli.demo import demo
from cli.demo.client import Client, DemoError, normalize_url
from cli.demo.figures import rows_of, total_row
from cli.demo.render import to_json
from cli.demo.runner import Runner
from cli.demo.workload import interleave, load_prompts

SPECULATIVE = {
    "speculative_decoding": {
        "acceptance_histogram": [1, 0, 1],
        "num_spec_steps": 2,
        "num_draft_tokens": 4,
        "num_accepted_draft_tokens": 2,
        "mean_acceptance_length": 2.0,
        "draft_acceptance_rate": 0.5,
    },
    "breakeven": {
        "draft_s": 0.0,
        "verify_s": 0.01,
        "plain_s": 0.0,
        "rounds_by_k": {"2": 2},
        "undrafted": 0,
        "switches": 0,
        "batch_mean": 1.0,
    },
}
PLAIN = {
    "speculative_decoding": {
        "acceptance_histogram": [],
        "num_spec_steps": 0,
        "num_draft_tokens": 0,
        "num_accepted_draft_tokens": 0,
        "mean_acceptance_length": 0.0,
        "draft_acceptance_rate": 0.0,
    },
    "breakeven": {
        "draft_s": 0.0,
        "verify_s": 0.0,
        "plain_s": 0.03,
        "rounds_by_k": {},
        "undrafted": 3,
        "switches": 0,
        "batch_mean": 1.0,
    },
}


class Gateway:
    """Speaks the part of the gateway's protocol that the demo uses, on a thread of its own."""

    def __init__(self, *faults, key=None):
        self.faults, self.key, self.url = faults, key, ""
        self.seen, self.running, self.asked_for_models = [], 0, 0

    async def models(self, request):
        if self.key and request.headers.get("authorization") != f"Bearer {self.key}":
            error = {"message": "no such key", "type": "authentication_error", "param": None, "code": None}
            return web.json_response({"error": error}, status=401)
        self.asked_for_models += 1
        ready = "loads" not in self.faults or self.asked_for_models > 2
        return web.json_response({"object": "list", "data": [{"id": "m", "object": "model"}] if ready else []})

    async def chat(self, request):
        body = await request.json()
        wish = request.headers.get("x-breakeven-path", "auto")
        self.seen.append((wish, body["messages"][-1]["content"], self.running))
        self.running += 1
        path = "plain" if wish == "auto" or "disobey" in self.faults else wish
        headers = {"x-breakeven-path": path, "x-breakeven-arm": f"engine/{path}", "x-breakeven-task": "chat"}
        why = "probe, 2 % of requests" if "probe" in self.faults and len(self.seen) % 2 else "because"
        headers |= {"x-breakeven-reason": f"{path}: {why}", "content-type": "text/event-stream"}
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        for event in self.events(path):
            await asyncio.sleep(0.002)
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        self.running -= 1
        return response

    def events(self, path):
        yield {"choices": [{"index": 0, "delta": {"role": "assistant"}}]}
        for word in ("one ", "two ", "three ", "four"):
            yield {"choices": [{"index": 0, "delta": {"content": word}}]}
        sometimes = "every other fails" in self.faults and len(self.seen) % 2
        if "late error" in self.faults or sometimes:
            yield {"error": {"message": "the engine died", "type": "server_error", "param": None, "code": None}}
        usage = {"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14}
        yield {"choices": [], "usage": usage, "metrics": PLAIN if path == "plain" else SPECULATIVE}

    @contextmanager
    def serving(self):
        loop, ready = asyncio.new_event_loop(), threading.Event()
        app = web.Application()
        app.router.add_get("/v1/models", self.models)
        app.router.add_post("/v1/chat/completions", self.chat)
        runner = web.AppRunner(app)

        async def start():
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            ready.set()

        def run_loop():
            loop.run_until_complete(start())
            loop.run_forever()
            loop.run_until_complete(runner.cleanup())
            loop.close()

        thread = threading.Thread(target=run_loop)
        thread.start()
        assert ready.wait(60)
        try:
            yield self
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(60)


def server(*faults, key=None):
    return Gateway(*faults, key=key).serving()


def run(*arguments):
    return CliRunner().invoke(demo, [*arguments])


@pytest.fixture(autouse=True)
def _no_settling(monkeypatch):
    monkeypatch.setattr("cli.demo.runner._SETTLE_S", 0)
    monkeypatch.delenv("BREAKEVEN_URL", raising=False)
    monkeypatch.delenv("BREAKEVEN_API_KEY", raising=False)


def test_json_on_standard_output_and_pairs_in_alternating_order():
    with server() as app:
        result = run("--url", app.url + "/v1/", "--json", "--prompts", "1", "--concurrency", "1,4")
        assert result.exit_code == 0, result.output
        got = json.loads(result.stdout)
        wishes = [wish for wish, _prompt, _running in app.seen]
        prompts = [prompt for _wish, prompt, _running in app.seen]
    assert wishes[:8] == [
        "plain",
        "speculative",
        "speculative",
        "plain",
        "plain",
        "speculative",
        "speculative",
        "plain",
    ]
    assert prompts[0] == prompts[1]
    assert wishes[16:32] == ["plain"] * 4 + ["speculative"] * 8 + ["plain"] * 4
    assert wishes[32:] == ["auto"] * 8
    assert [row["requests"] for row in got["tasks"]] == [4] * 8
    assert got["tasks"][0]["a"] == 2.0
    assert got["tasks"][0]["z"] == 0.5
    assert got["tasks"][0]["gain"] == pytest.approx(4 * 0.01 / 0.01)
    assert got["tasks"][0]["reason"] == "plain: because"
    assert got["totals"]["errors"] == []


def test_concurrency_four_keeps_four_requests_in_flight():
    with server() as app:
        run("--url", app.url, "--json", "--prompts", "1", "--concurrency", "4")
        assert max(running for _wish, _prompt, running in app.seen) == 3


def test_table_names_what_loses_and_what_the_gateway_decides():
    with server() as app:
        result = run("--url", app.url, "--prompts", "3", "--concurrency", "1")
    assert result.exit_code == 0, result.output
    assert "Speculation pays on" in result.stdout
    assert "What the gateway itself decides now" in result.stdout
    assert "plain: because" in result.stdout


def test_no_server_says_how_to_start_one():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        result = run("--url", f"127.0.0.1:{free.getsockname()[1]}")
    assert result.exit_code == 1
    assert "No gateway answers at http://127.0.0.1:" in result.output
    assert "make run" in result.output
    assert "Traceback" not in result.output


def test_it_waits_while_the_model_loads():
    with server("loads") as app:
        result = run("--url", app.url, "--prompts", "1", "--concurrency", "4", "--json")
        asked = app.asked_for_models
    assert result.exit_code == 0, result.output
    assert asked == 3


def test_missing_key_says_so_and_a_right_one_works():
    with server(key="secret") as app:
        refused = run("--url", app.url)
        accepted = run("--url", app.url, "--api-key", "secret", "--prompts", "1", "--concurrency", "1", "--json")
    assert refused.exit_code == 1
    assert "answered 401: no such key" in refused.output
    assert "--api-key" in refused.output
    assert accepted.exit_code == 0, accepted.output


def test_an_error_in_the_stream_is_reported_and_fails_the_run():
    with server("late error") as app:
        result = run("--url", app.url, "--prompts", "1", "--concurrency", "1")
        seen = len(app.seen)
    assert result.exit_code == 1
    assert "the engine died" in result.output
    assert seen == 9  # eight in a row, and one more that asks for a decision: then it gives up


def test_single_failures_do_not_end_the_run():
    with server("every other fails") as app:
        result = run("--url", app.url, "--prompts", "2", "--concurrency", "1", "--json")
        prompts = [prompt for wish, prompt, _running in app.seen if wish != "auto"]
    assert len(prompts) == 32
    assert result.exit_code == 1  # more failures than pairs
    assert json.loads(result.stdout.splitlines()[0])["totals"]["pairs_run"] == 0


def test_a_probe_is_not_taken_for_the_decision():
    with server("probe") as app:
        result = run("--url", app.url, "--prompts", "2", "--concurrency", "1", "--json")
        asked = [prompt for wish, prompt, _running in app.seen if wish == "auto"]
    assert {row["reason"] for row in json.loads(result.stdout)["tasks"]} == {"plain: because"}
    assert len(asked) == 16  # each task a second time, after a probe


def test_a_path_that_is_not_obeyed_is_no_sample():
    with server("disobey") as app:
        result = run("--url", app.url, "--prompts", "1", "--concurrency", "1", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout.splitlines()[0])["totals"]["pairs_run"] == 0
    assert "not allowed on the speculative path" in result.output


def test_when_the_time_is_up_no_new_group_starts_and_the_report_says_so():
    ticks = iter(range(10_000))

    async def go(url):
        async with aiohttp.ClientSession() as session:
            runner = Runner(Client(session, url, None), "m", max_tokens=8, budget_s=12, clock=lambda: next(ticks))
            return await runner.run(interleave(load_prompts(), 6), [1])

    with server() as app:
        outcome = asyncio.run(go(app.url))
    # The clock moves one second at each look: one at the start, then one before each group.
    assert len(outcome.pairs) == 12
    assert outcome.planned == 48
    totals = to_json(outcome, rows_of(outcome, ["chat"]), total_row(outcome))["totals"]
    assert (totals["pairs_run"], totals["pairs_planned"]) == (12, 48)


@pytest.mark.parametrize("value", ["", "0", "1,x", "65"])
def test_bad_concurrency_is_refused(value):
    result = run("--concurrency", value)
    assert result.exit_code == 2
    assert "expected numbers from 1 to 64" in result.output


@pytest.mark.parametrize(
    ("given", "root"),
    [
        ("127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://h/v1", "http://h"),
        ("https://h/base/v1/", "https://h/base"),
    ],
)
def test_url_forms(given, root):
    assert normalize_url(given) == root


@pytest.mark.parametrize("given", ["ftp://h", "http://", "unix:///x"])
def test_bad_url(given):
    with pytest.raises(DemoError, match="expected an address"):
        normalize_url(given)
