"""A policy's life on running gateways: reload, apply, roll back, converge, survive; nothing takes half of one."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
import time
from pathlib import Path

import aiohttp
import pytest
from click.testing import CliRunner

from cli.main import main
from tests.fixtures.policies import CHAT, IN_TIME_S, Gateways, hash_of, policy
from tests.fixtures.servers import Scripted, get, request, wait_until
from tests.fixtures.stores import RedisServer


@pytest.fixture(autouse=True)
def _hurried(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Look more often, so that tests wait less; `_unhurried` ones keep the real pace."""
    if "_unhurried" not in request.fixturenames:
        monkeypatch.setattr("gateway.policy_reload.EVERY_S", 0.05)


@pytest.fixture
def _unhurried() -> None:
    """Keep the real pace."""


def test_a_changed_file_comes_into_force_and_a_broken_one_does_not(gateways: Gateways, upstream: Scripted) -> None:
    first, second = policy(upstream), policy(upstream, rule="second")
    gateway = gateways.start(first)
    assert gateway.ask()["x-breakeven-policy"] == hash_of(first)

    gateway.write(second)
    gateway.follows(second)
    assert gateway.ask()["x-breakeven-policy"] == hash_of(second)
    assert gateway.state["rejected"] is None

    gateway.write(second + "  - {nam: third}\n")
    wait_until(lambda: gateway.state["rejected"] is not None, IN_TIME_S)
    assert f"{gateway.file}:6:6: error: unknown key 'nam' in rule" in gateway.state["rejected"]["findings"][0]
    assert get(f"{gateway.url}/readyz")[0] == 200
    assert gateway.ask()["x-breakeven-policy"] == hash_of(second)

    gateway.file.unlink()
    wait_until(lambda: "cannot read the file" in gateway.state["rejected"]["findings"][0], IN_TIME_S)
    assert gateway.ask()["x-breakeven-policy"] == hash_of(second)

    gateway.write(second)
    wait_until(lambda: gateway.state["rejected"] is None, IN_TIME_S)
    assert (gateway.state["reloads"], gateway.state["rejections"]) == (1, 2)


def test_apply_conflict_history_and_rollback(gateways: Gateways, upstream: Scripted) -> None:
    first, second, third = (policy(upstream, rule=name) for name in ("one", "two", "three"))
    gateway = gateways.start(first)
    status, headers, body = gateway.call("GET", "")
    assert (status, headers["etag"], body["text"]) == (200, f'"{hash_of(first)}"', first)

    status, made = gateway.apply(second, f'"{hash_of(first)}"')
    assert (status, made["hash"], made["origin"], made["reason"]) == (200, hash_of(second), "api", "a test")
    assert gateway.ask()["x-breakeven-policy"] == hash_of(second)

    status, body = gateway.apply(third, f'"{hash_of(first)}"')
    assert (status, body["error"]["code"]) == (409, "policy_changed")
    assert hash_of(second) in body["error"]["message"]
    status, body = gateway.apply("version: 1\nrules: [{pat: plain}]", "*")
    assert (status, body["error"]["code"]) == (400, "invalid_policy")
    assert "policy:2:10: error: unknown key 'pat' in rule (did you mean 'path'?)" in body["error"]["message"]
    status, _, body = gateway.call("PUT", "", {"text": third})
    assert (status, body["error"]["code"]) == (400, "if_match_required")
    assert gateway.ask()["x-breakeven-policy"] == hash_of(second)

    status, _, made = gateway.call("POST", "/rollback", {"reason": "slow"}, if_match=hash_of(second))
    assert (status, made["hash"], made["origin"]) == (200, hash_of(first), "rollback")
    assert gateway.ask()["x-breakeven-policy"] == hash_of(first)
    status, _, body = gateway.call("POST", "/rollback", {"hash": "no-such"}, if_match="*")
    assert (status, body["error"]["code"]) == (404, "no_such_version")

    _, _, versions = gateway.call("GET", "/versions")
    assert [(entry["hash"], entry["origin"]) for entry in versions] == [
        (hash_of(first), "rollback"),
        (hash_of(second), "api"),
        (hash_of(first), "file"),
    ]
    _, _, changes = gateway.call("GET", f"/versions/{hash_of(second)}/diff")
    assert [(change["kind"], change["before"], change["after"]) for change in changes] == [("changed", "one", "two")]
    _, _, version = gateway.call("GET", f"/versions/{hash_of(second)[:6]}")
    assert version["text"] == second


@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        (b"\xff", "application/yaml", "not UTF-8"),
        (b"{", "application/json", "body:"),
        (b'{"text": 5}', "application/json", "body:"),
        (b"version: 1", "text/html", "content-type: expected"),
        (b"version: 1\ntasks: tasks/x.yaml", "application/yaml", "without its tasks file"),
        (
            b"version: 1\nbackends: {a: {url: '${BREAKEVEN_NOT_SET}'}}",
            "application/yaml",
            "BREAKEVEN_NOT_SET is not set",
        ),
        (b"version: 1\nclassifier: {artefact: /nonexistent.npz}", "application/yaml", "classifier.artefact"),
    ],
)
def test_what_cannot_be_used_is_refused_in_words(
    body: bytes, kind: str, message: str, gateways: Gateways, upstream: Scripted
) -> None:
    gateway = gateways.start(policy(upstream))
    status, _, answer = gateway.call("PUT", "", body, if_match="*", content_type=kind)
    assert status == 400
    assert message in answer["error"]["message"]
    assert gateway.state["hash"] == hash_of(policy(upstream))


def test_check_and_explain_by_api(gateways: Gateways, upstream: Scripted) -> None:
    gateway = gateways.start(policy(upstream))
    status, _, body = gateway.call("POST", "/check", {"text": "version: 1\nrules: [{}, {}]"})
    assert (status, body["ok"]) == (200, True)
    assert "never reached" in body["findings"][0]
    asked = {"request": CHAT, "with": {"task": "code", "load": 3}}
    status, _, body = gateway.call("POST", "/explain", asked)
    assert (status, body["rule"], body["task"], body["arm"]) == (200, "everything", "code", "a/plain")
    status, _, body = gateway.call("POST", "/explain", asked | {"policy": policy(upstream, rule="other")})
    assert body["rule"] == "other"
    status, _, body = gateway.call("POST", "/explain", {"request": CHAT, "with": {"task": "poetry"}})
    assert (status, body["error"]["param"]) == (400, "with.task")
    _, _, body = gateway.call("POST", "/explain", {"request": CHAT | {"model": "another"}})
    assert body["arm"] == "a/plain"
    assert "no backend has the model 'another'" in body["assumed"][0]
    assert upstream.bodies == []


def test_explain_and_apply_from_the_command_line(gateways: Gateways, upstream: Scripted, tmp_path: Path) -> None:
    gateway = gateways.start(policy(upstream))
    new, body, saved = tmp_path / "new.yaml", tmp_path / "body.json", tmp_path / "saved.json"
    new.write_text(policy(upstream, rule="new"), encoding="utf-8")
    body.write_text(json.dumps(CHAT), encoding="utf-8")

    def run(*arguments: object) -> str:
        result = CliRunner().invoke(main, ["policy", *map(str, arguments)])
        assert result.exit_code == 0, result.output
        return result.output

    assert "+ everything" in run("explain", body, "--url", gateway.url, "--save-snapshot", saved)
    assert "arm       a/plain" in run("explain", body, "--policy", new, "--snapshot", saved)
    run("apply", new, "--url", gateway.url, "--reason", "by hand")
    assert gateway.state["hash"] == hash_of(new.read_text(encoding="utf-8"))
    lines = run("history", "--url", gateway.url).splitlines()
    assert "by hand" in lines[1]
    assert len(lines) == 3
    assert run("diff", new, "current", "--url", gateway.url) == "no difference in meaning\n"
    first = hash_of(policy(upstream))[:6]
    assert "name new -> everything" in run("diff", "current", first, "--url", gateway.url)
    run("rollback", "--url", gateway.url)
    assert gateway.state["hash"] == hash_of(policy(upstream))


def test_the_command_line_reaches_gateways_through_the_database(gateways: Gateways, upstream: Scripted) -> None:
    gateway = gateways.start(policy(upstream))
    second = policy(upstream, rule="second")
    new = gateway.file.parent / "new.yaml"
    new.write_text(second, encoding="utf-8")

    def run(*arguments: object) -> tuple[int, str]:
        command = ["policy", *map(str, arguments), "--database-url", gateways.database_url]
        result = CliRunner().invoke(main, command)
        return result.exit_code, result.output

    code, output = run("apply", new, "--if-match", "0123456789ab")
    assert code == 1
    assert "another policy than 0123456789ab is in force" in output
    code, output = run("apply", new, "--reason", "night shift")
    assert (code, f"policy {hash_of(second)} in force" in output) == (0, True)
    gateway.follows(second)
    _, output = run("history", "--json")
    assert json.loads(output)[0]["reason"] == "night shift"
    assert run("history", "--show", hash_of(second)[:5]) == (0, second)
    run("rollback")
    gateway.follows(policy(upstream))


@pytest.mark.usefixtures("_unhurried")
def test_gateways_converge_with_and_without_redis(
    gateways: Gateways, upstream: Scripted, valkey_server: RedisServer
) -> None:
    texts = [policy(upstream, rule=f"number {number}") for number in range(4)]
    one = gateways.start(texts[0], redis=valkey_server.url)
    two = gateways.start(texts[0], redis=valkey_server.url)
    assert one.apply(texts[1])[0] == 200
    two.follows(texts[1])

    valkey_server.signal(signal.SIGSTOP)
    assert two.apply(texts[2])[0] == 200
    one.follows(texts[2])
    valkey_server.signal(signal.SIGCONT)

    two.write(texts[3])
    one.follows(texts[3])
    two.follows(texts[3])


def test_what_was_applied_survives_a_restart_until_the_file_changes(gateways: Gateways, upstream: Scripted) -> None:
    first, applied, changed = (policy(upstream, rule=name) for name in ("first", "applied", "changed"))
    gateway = gateways.start(first)
    gateway.apply(applied)
    gateway.restart()
    gateway.follows(applied)
    assert gateway.ask()["x-breakeven-policy"] == hash_of(applied)
    gateway.write(changed)
    gateway.restart()
    gateway.follows(changed)
    assert gateway.state["origin"] == "file"


def test_backends_change_with_the_policy_and_running_streams_end_on_the_old_one(
    gateways: Gateways, upstream: Scripted, other_upstream: Scripted
) -> None:
    gateway = gateways.start(policy(upstream))
    upstream.handler = lambda request, body: upstream.stream(request, body, pause=0.8)
    lines: list[bytes] = []

    async def stream() -> None:
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{gateway.url}/v1/chat/completions", json=CHAT | {"stream": True}) as response,
        ):
            assert response.headers["x-breakeven-policy"] == hash_of(policy(upstream))
            lines.extend([line async for line in response.content])

    thread = threading.Thread(target=lambda: asyncio.run(stream()))
    thread.start()
    wait_until(lambda: len(upstream.bodies) == 1)
    second = policy(other_upstream, backend="b")
    assert gateway.apply(second)[0] == 200
    assert gateway.ask()["x-breakeven-arm"] == "b/plain"
    assert len(upstream.bodies) == 1
    thread.join(60)
    assert b"data: [DONE]\n" in lines
    assert upstream.aborted == 0
    wait_until(lambda: set(get(f"{gateway.url}/readyz")[1]["backends"]) == {"b"})


def test_a_new_backend_is_used_once_it_answers(
    gateways: Gateways, upstream: Scripted, other_upstream: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.generations.PATIENCE_S", 60.0)
    gateway = gateways.start(policy(upstream))
    other_upstream.up = False
    applied: list[int] = []
    thread = threading.Thread(target=lambda: applied.append(gateway.apply(policy(other_upstream, backend="b"))[0]))
    thread.start()
    wait_until(lambda: other_upstream.looks >= 2)
    assert applied == []
    assert gateway.ask()["x-breakeven-arm"] == "a/plain"
    other_upstream.up = True
    thread.join(60)
    assert applied == [200]
    assert gateway.ask()["x-breakeven-arm"] == "b/plain"


def test_reloads_under_load_lose_and_mix_nothing(
    gateways: Gateways, upstream: Scripted, other_upstream: Scripted
) -> None:
    texts = [policy(upstream, backend="a"), policy(other_upstream, backend="b")]
    arms = {hash_of(texts[0]): "a/plain", hash_of(texts[1]): "b/plain"}
    gateway = gateways.start(texts[0])
    seen: list[tuple[str, str]] = []
    stop = threading.Event()

    async def client(session: aiohttp.ClientSession) -> None:
        while not stop.is_set():
            began = time.perf_counter()
            async with session.post(f"{gateway.url}/v1/chat/completions", json=CHAT) as response:
                assert response.status == 200, await response.text()
                await response.read()
                seen.append((response.headers["x-breakeven-policy"], response.headers["x-breakeven-arm"]))
            await asyncio.sleep(max(0.0, 0.04 - (time.perf_counter() - began)))

    async def load() -> None:
        async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
            for _ in range(8):  # up to 200 requests per second
                group.create_task(client(session))

    failures: list[BaseException] = []

    def run() -> None:
        try:
            asyncio.run(load())
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()

    def used(text: str) -> None:
        """Wait until a request has met this policy."""
        wait_until(lambda: bool(failures) or (bool(seen) and seen[-1][0] == hash_of(text)))

    used(texts[0])
    for number in range(1, 7):
        text = texts[1] if number % 2 else texts[0] + f"# {number}\n"
        if number % 2:
            assert gateway.apply(text)[0] == 200
        else:
            arms[hash_of(text)] = "a/plain"
            gateway.write(text)
        used(text)
    stop.set()
    thread.join(60)
    assert failures == []
    assert len({policy for policy, _ in seen}) == 5
    assert all(arms[policy] == arm for policy, arm in seen)


def test_metrics_tell_which_policy_is_in_force(gateways: Gateways, upstream: Scripted) -> None:
    gateway = gateways.start(policy(upstream))
    gateway.apply(policy(upstream, rule="second"))
    gateway.write("version: 2")
    wait_until(lambda: gateway.state["rejected"] is not None, IN_TIME_S)
    page = request("GET", f"{gateway.url}/metrics")[2].decode()
    expected = hash_of(policy(upstream, rule="second"))
    assert f'breakeven_policy_info{{hash="{expected}",origin="api"}} 1.0' in page
    assert page.count("breakeven_policy_info{") == 1
    assert "breakeven_policy_rejected 1.0" in page
    assert "breakeven_policy_reloads 1.0" in page


def test_a_rule_that_is_only_observed_never_refuses(gateways: Gateways, upstream: Scripted) -> None:
    text = policy(upstream).replace(
        "rules:\n", "rules:\n  - {name: watch, mode: observe, when: {task: code}, arms: x-k2}\n"
    )
    text = text.replace("arms: plain}", "arms: auto}")
    gateway = gateways.start(text)
    status, headers, _ = request("POST", f"{gateway.url}/v1/chat/completions", CHAT, {"x-breakeven-task": "code"})
    assert (status, headers["x-breakeven-arm"]) == (200, "a/plain")
