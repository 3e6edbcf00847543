"""What a newcomer does first: serve, point the OpenAI client at it, read the headers, ask for a report."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import openai
import pytest

from gateway.types import DEFAULT_TASKS
from tests.fixtures.servers import wait_until
from tests.repo.tree import text

REASON = re.compile(r"(speculative|plain) engine/[\w-]+: .+")


@pytest.fixture(scope="module")
def client(served):
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as opened:
        yield opened


@pytest.fixture(scope="module")
def model(client):
    return client.models.list().data[0].id


def ask(client, model, content, **more):
    messages = [{"role": "user", "content": content}]
    return client.chat.completions.with_raw_response.create(model=model, messages=messages, max_tokens=12, **more)


def test_an_answer_says_task_path_arm_and_reason(client, model):
    raw = ask(client, model, "Extract name and city as JSON: Ada lives in London.")
    answer, headers = raw.parse(), raw.headers
    assert answer.choices[0].message.role == "assistant"
    assert answer.usage.completion_tokens >= 1
    assert headers["x-breakeven-task"] in DEFAULT_TASKS
    assert headers["x-breakeven-path"] in ("plain", "speculative")
    assert headers["x-breakeven-arm"].startswith("engine/")
    assert REASON.fullmatch(headers["x-breakeven-reason"]), headers["x-breakeven-reason"]
    assert float(headers["x-breakeven-overhead-ms"]) >= 0
    assert headers["x-breakeven-policy"]
    assert headers["x-request-id"]
    assert "metrics" not in answer.model_extra


def test_wishes_are_obeyed_on_loopback(client, model):
    plain = ask(client, model, "hello", extra_headers={"x-breakeven-path": "plain", "x-breakeven-task": "creative"})
    assert plain.headers["x-breakeven-path"] == "plain"
    assert plain.headers["x-breakeven-task"] == "creative"
    forced = ask(client, model, "a b a b a b", extra_headers={"x-breakeven-arm": "engine/ngram-k4"})
    assert forced.headers["x-breakeven-arm"] == "engine/ngram-k4"
    assert forced.headers["x-breakeven-path"] == "speculative"


def test_both_paths_give_the_same_greedy_text_in_fp32(client, model):
    texts = {
        path: ask(client, model, "one two one two one", temperature=0, extra_headers={"x-breakeven-path": path})
        .parse()
        .choices[0]
        .message.content
        for path in ("plain", "speculative")
    }
    assert texts["plain"] == texts["speculative"]


def test_a_stream_adds_up_to_the_unstreamed_answer(client, model):
    whole = ask(client, model, "stream me", temperature=0).parse().choices[0].message.content
    with client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "stream me"}],
        max_tokens=12,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    ) as stream:
        chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole
    assert chunks[-1].usage.completion_tokens >= 1
    assert "metrics" not in chunks[-1].model_extra


def test_debug_leaves_the_engines_figures_in(client, model):
    raw = ask(client, model, "x y x y x y", extra_headers={"x-breakeven-debug": "1", "x-breakeven-path": "speculative"})
    metrics = json.loads(raw.text)["metrics"]
    assert set(metrics) == {"speculative_decoding", "breakeven"}
    assert metrics["breakeven"]["undrafted"] + metrics["speculative_decoding"]["num_spec_steps"] >= 1


def test_text_completions(client, model):
    answer = client.completions.create(model=model, prompt="Once upon a time", max_tokens=5, temperature=0)
    assert answer.choices[0].finish_reason in ("length", "stop")


def test_an_unknown_model_is_a_404_in_openais_form(client):
    with pytest.raises(openai.NotFoundError) as caught:
        ask(client, "no-such-model", "hello")
    assert caught.value.code == "model_not_found"
    assert caught.value.param == "model"


def test_models_say_their_window(client):
    assert client.models.list().data[0].model_extra["max_model_len"] >= 512


def test_the_readmes_request_runs_as_printed(served, model):
    code = re.search(r"```python\n(.+?)```", text("README.md"), re.S)[1]
    assert "http://127.0.0.1:8000/v1" in code
    assert 'model="SmolLM2-135M-Instruct"' in code
    code = code.replace("http://127.0.0.1:8000", served.url).replace("SmolLM2-135M-Instruct", model)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    task, path, reason = done.stdout.splitlines()[-3:]
    assert task == "structured"
    assert path in ("plain", "speculative")
    assert reason.startswith(path)


def test_the_demo_runs_against_it_and_keeps_its_contract(served):
    done = served.breakeven("demo", "--json", "--prompts", "1", "--concurrency", "1,2", "--max-tokens", "12")
    assert done.returncode == 0, done.stderr
    got = json.loads(done.stdout)
    assert sorted(row["task"] for row in got["tasks"]) == sorted(DEFAULT_TASKS)
    assert {row["requests"] for row in got["tasks"]} == {4}
    for row in got["tasks"]:
        assert row["gain"] > 0
        assert row["tpot_p99_plain_ms"] is None
        assert row["tpot_max_plain_ms"] >= row["tpot_p50_plain_ms"] > 0
        assert row["path"] in ("plain", "speculative")
        assert REASON.fullmatch(row["reason"])
        if row["a"] is not None:
            assert row["a"] >= 1
            assert 0 <= row["z"] <= 1
            assert row["break_even"] == pytest.approx(1 + row["alpha"] + row["beta"], abs=2e-4)
    assert got["totals"]["errors"] == []
    assert got["totals"]["requests"] == 32


def test_report_reads_what_was_served(served, client, model):
    ask(client, model, "for the report", extra_headers={"x-breakeven-task": "math"})

    def requests_of_math():
        done = served.breakeven("report", "--since", "1h", "--format", "json")
        assert done.returncode == 0, done.stderr
        return {row["task"]: row["requests"] for row in json.loads(done.stdout)["tasks"]}.get("math", 0)

    wait_until(lambda: requests_of_math() >= 1, 120)  # records are written in the background
    as_text = served.breakeven("report", "--since", "1h")
    assert "math" in as_text.stdout
