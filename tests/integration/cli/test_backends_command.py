"""`breakeven backends check`: what is found at each server, and whether its arms give the answers of plain decoding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from click.testing import CliRunner

from cli.main import main
from tests.fixtures.ports import free_port
from tests.fixtures.servers import Scripted, completion


def check(tmp_path: Path, backends: str, *options: str) -> tuple[int, str]:
    (tmp_path / "p.yaml").write_text(f"version: 1\nbackends:\n{backends}", encoding="utf-8")
    arguments = ["backends", "check", "--policy", str(tmp_path / "p.yaml"), *options]
    result = CliRunner().invoke(main, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout


def pools(plain: Scripted, spec: Scripted, kind: str = "openai") -> str:
    return (
        f"  plain: {{kind: {kind}, url: '{plain.url}', arms: plain}}\n"
        f"  spec: {{kind: {kind}, url: '{spec.url}', arms: eagle-k3}}\n"
    )


def answering(text: str, gap: float | None = None):
    async def handler(_: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        answer = completion(text)
        if body.get("logprobs") and gap is not None:
            tops = [{"token": text, "logprob": 0.0}, {"token": "other", "logprob": -gap}]
            answer["choices"][0]["logprobs"] = {
                "content": [{"token": text, "bytes": list(text.encode()), "top_logprobs": tops}]
            }
        return web.json_response(answer)

    return handler


@pytest.mark.parametrize(
    ("other", "gap", "code", "said"),
    [
        ("hello", None, 0, "2 of 2 equal"),
        ("help", 0.125, 0, "0 of 2 equal, 2 near tie"),
        ("help", 4.0, 1, "0 of 2 equal, 2 DIFFERENT"),
        ("help", None, 0, "0 of 2 equal, 2 unexplained"),
    ],
)
def test_answers_of_two_pools_are_compared(tmp_path, upstream, other_upstream, other, gap, code, said):
    upstream.handler, other_upstream.handler = answering("hello", gap), answering(other)
    found, output = check(tmp_path, pools(upstream, other_upstream), "--prompts", "2")
    assert (found, said in output) == (code, True), output
    assert "audit spec/eagle-k3 against plain/plain" in output
    if other != "hello":
        assert "prompt 0:" in output
        assert "content at character 3" in output
    assert all(body["temperature"] == 0 and not body.get("stream") for body in other_upstream.bodies)


def test_what_is_measured_is_said_and_a_wrong_kind_is_told(tmp_path, upstream, other_upstream):
    code, output = check(tmp_path, pools(upstream, other_upstream), "--json", "--prompts", "1")
    assert code == 0
    found = json.loads(output)
    assert found["ok"] is True
    assert [server["backend"] for server in found["servers"]] == ["plain", "spec"]
    server = found["servers"][1]
    assert (server["reachable"], server["model"], server["window"]) == (True, "m", 2048)
    assert server["arms"] == ["spec/eagle-k3"]
    assert any("time to first token" in line for line in server["measured"])
    assert any(line.startswith("cost of steps") for line in server["not_measured"])
    assert found["audits"][0]["acceptance"] == "none"


def test_a_server_that_is_away_is_named(tmp_path, upstream):
    away = f"  gone: {{kind: vllm, url: 'http://127.0.0.1:{free_port()}', arms: eagle-k3}}\n"
    text = f"  plain: {{kind: openai, url: '{upstream.url}', arms: plain}}\n{away}"
    code, output = check(tmp_path, text, "--patience", "1.2")
    assert code == 1
    assert "gone  http://127.0.0.1:" in output
    assert "NOT REACHABLE: cannot reach" in output
    assert "no audit: no speculative arm" in output


def test_a_policy_that_cannot_be_used_is_told_as_by_check(tmp_path):
    code, _ = check(tmp_path, "  a: {kind: vlm, url: 'http://h'}\n")
    assert code == 1


@pytest.mark.slow
def test_the_engine_says_what_it_is_and_its_arms_agree(tmp_path, engine_url: str):
    """Same prompts on the plain and on several speculative arms of the real engine with a tiny model, float32."""
    backend = f"  engine: {{kind: openai, url: '{engine_url}', arms: plain}}\n"
    code, output = check(tmp_path, backend, "--no-audit")
    assert code == 0
    assert (
        "warning       the policy says kind: openai, but Breakeven's engine answers there: use kind: engine" in output
    )
    backend = f"  engine: {{url: '{engine_url}', arms: [plain, ngram-k4, suffix-k2, draft_model-k4]}}\n"
    code, output = check(tmp_path, backend, "--json", "--prompts", "2", "--max-tokens", "16")
    assert code == 0, output
    found = json.loads(output)
    (server,) = found["servers"]
    assert (server["engine"], server["dtype"], server["version"] != "") == ("Breakeven's engine", "float32", True)
    assert "cost of steps by load, context and draft length (α and β apart)" in server["measured"]
    assert server["not_measured"] == []
    audits = {each["arm"]: each for each in found["audits"]}
    assert audits.keys() == {"engine/ngram-k4", "engine/suffix-k2", "engine/draft_model-k4"}
    for each in audits.values():
        assert (each["compared"], each["equal"], each["tie"]) == (2, 2, 0.001)
        assert each["acceptance"] == "reported"
    assert audits["engine/draft_model-k4"]["drafted"] > 0
