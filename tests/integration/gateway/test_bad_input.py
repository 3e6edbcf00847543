"""Bad input over HTTP: the right status, OpenAI's four fields, the field at fault; and faults of others."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from aiohttp import web
from click.testing import CliRunner, Result

from tests.fixtures.servers import GatewayServer, Scripted, policy_text, request, scripted_upstream, wait_until

Start = Callable[..., GatewayServer]
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One gateway for all of them: nothing here may break it."""
    from gateway.app import create_app
    from gateway.policy import parse_policy
    from gateway.settings import Settings
    from tests.fixtures.servers import serving

    with scripted_upstream() as upstream:
        env = {"BREAKEVEN_DATA_DIR": str(tmp_path_factory.mktemp("gateway")), "BREAKEVEN_MAX_BODY_BYTES": "100000"}
        policy = parse_policy(policy_text(("pool", "openai", upstream.url)), "test.yaml")
        server = GatewayServer("", [], None)
        with serving(create_app(Settings.from_env(env), policy=policy, sinks=(server,))) as url:
            server.url = url
            wait_until(lambda: request("GET", f"{url}/readyz")[0] == 200)
            yield server


def refused(
    gateway: GatewayServer, body: Any, headers: dict[str, str] | None = None, path: str = "chat/completions"
) -> Any:
    """Send and return (status, error); checks that the error is whole."""
    status, sent, raw = request("POST", f"{gateway.url}/v1/{path}", body, headers)
    error = json.loads(raw)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert sent["content-type"].startswith("application/json")
    assert sent["x-request-id"]
    return status, error


@pytest.mark.parametrize("raw", [b"{", b"[]", b"", b'{"model": "m", "messages": [}', b"\xff"])
def test_malformed_json(gateway: GatewayServer, raw: bytes) -> None:
    status, error = refused(gateway, raw)
    assert (status, error["code"]) == (400, "invalid_json")


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"max_tokens": -3}, "max_tokens"),
        ({"temperature": "x"}, "temperature"),
        ({"stream": 1}, "stream"),
        ({"model": 4}, "model"),
        ({"speculation": {"method": "ngram", "k": 2}}, "speculation"),
    ],
)
def test_a_wrong_field(gateway: GatewayServer, change: dict[str, Any], param: str) -> None:
    status, error = refused(gateway, {**CHAT, **change})
    assert (status, error["type"], error["param"]) == (400, "invalid_request_error", param)


def test_an_unknown_model(gateway: GatewayServer) -> None:
    status, error = refused(gateway, {**CHAT, "model": "gpt-9"})
    assert (status, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert "known: m" in error["message"]
    with pytest.raises(openai.NotFoundError):
        openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="x", max_retries=0).models.retrieve("gpt-9")


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("x-breakeven-task", "poetry"),
        ("x-breakeven-path", "fast"),
        ("x-breakeven-path", ""),
        ("x-breakeven-arm", "pool/ngram-k4"),
        ("x-breakeven-arm", "nonsense"),
        ("x-breakeven-arm", "other/plain"),
        ("x-breakeven-debug", "yes"),
    ],
)
def test_an_unknown_header_value_names_the_header(gateway: GatewayServer, header: str, value: str) -> None:
    status, error = refused(gateway, CHAT, {header: value})
    assert (status, error["param"]) == (400, header)
    assert header in error["message"]


def test_declared_tasks_are_taken(gateway: GatewayServer) -> None:
    status, headers, _ = request(
        "POST", f"{gateway.url}/v1/chat/completions", CHAT, {"x-breakeven-task": "translation"}
    )
    assert (status, headers["x-breakeven-task"]) == (200, "translation")


def test_an_assistant_turn_may_be_empty_or_null(gateway: GatewayServer) -> None:
    for content in ("", None):
        messages = [*CHAT["messages"], {"role": "assistant", "content": content}, *CHAT["messages"]]
        assert request("POST", f"{gateway.url}/v1/chat/completions", {**CHAT, "messages": messages})[0] == 200


def test_a_body_too_large(gateway: GatewayServer) -> None:
    status, error = refused(gateway, {**CHAT, "messages": [{"role": "user", "content": "x" * 100_000}]})
    assert (status, error["code"]) == (413, "request_too_large")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/chat/completions", 405),
        ("DELETE", "/v1/completions", 405),
        ("GET", "/nothing", 404),
        ("POST", "/v1/models", 405),
        ("GET", "/v1/models/none", 404),
        ("POST", "/v1/classify", 400),
    ],
)
def test_framework_errors_have_openais_form(gateway: GatewayServer, method: str, path: str, status: int) -> None:
    found, headers, raw = request(method, gateway.url + path, b"{}" if method == "POST" else None)
    assert found == status
    assert set(json.loads(raw)["error"]) == {"message", "type", "param", "code"}
    assert headers["x-request-id"]


def test_classify_takes_every_form_and_names_what_is_missing(gateway: GatewayServer) -> None:
    for body in (CHAT, {"prompt": "Translate to German: cat"}, {"id": 1, "turns": ["hi", "hello", "and now?"]}):
        status, _, raw = request("POST", f"{gateway.url}/v1/classify", body)
        assert status == 200
        assert set(json.loads(raw)) >= {"task", "confidence", "source", "signals", "micros"}
    assert refused(gateway, {"turns": [1]}, path="classify")[1]["param"] == "turns"


def test_metrics_are_shown(gateway: GatewayServer) -> None:
    request("POST", f"{gateway.url}/v1/chat/completions", CHAT)
    wait_until(lambda: b'breakeven_requests_total{backend="pool"' in request("GET", f"{gateway.url}/metrics")[2])
    page = request("GET", f"{gateway.url}/metrics")[2].decode()
    assert 'breakeven_backend_up{backend="pool"} 1.0' in page
    assert "vllm:spec_decode_num_drafts_total" in page


def test_no_backend_is_503_and_readyz_says_why(start_gateway: Start) -> None:
    gateway = start_gateway(policy_text(("pool", "openai", "http://127.0.0.1:9")), ready=False)
    wait_until(lambda: b"cannot reach" in request("GET", f"{gateway.url}/readyz")[2])
    status, _, raw = request("GET", f"{gateway.url}/readyz")
    assert status == 503
    assert "cannot reach" in json.loads(raw)["backends"]["pool"]["detail"]
    status, error = refused(gateway, CHAT)
    assert (status, error["code"], error["type"]) == (503, "no_backend", "service_unavailable")


def test_a_server_that_comes_back_with_another_model_is_followed(upstream: Scripted, start_gateway: Start) -> None:
    gateway = start_gateway(policy_text(("pool", "openai", upstream.url)))
    upstream.model = "n"
    wait_until(lambda: request("POST", f"{gateway.url}/v1/chat/completions", {**CHAT, "model": "n"})[0] == 200)
    assert refused(gateway, CHAT)[0] == 404
    upstream.up = False
    wait_until(lambda: request("GET", f"{gateway.url}/readyz")[0] == 503)
    upstream.up = True
    wait_until(lambda: request("GET", f"{gateway.url}/readyz")[0] == 200)


def test_a_model_that_a_server_does_not_have_is_told(upstream: Scripted, start_gateway: Start) -> None:
    gateway = start_gateway(policy_text(("pool", "openai", upstream.url), model="other"), ready=False)

    def detail() -> str:
        return str(json.loads(request("GET", f"{gateway.url}/readyz")[2])["backends"]["pool"]["detail"])

    wait_until(lambda: "does not serve model 'other'; it has: m" in detail())


def test_stores_that_are_away_at_start_delay_nothing_and_are_told(upstream: Scripted, start_gateway: Start) -> None:
    env = {"BREAKEVEN_REDIS_URL": "redis://127.0.0.1:9/0", "BREAKEVEN_DATABASE_URL": "postgresql://127.0.0.1:9/none"}
    gateway = start_gateway(policy_text(("pool", "openai", upstream.url)), env=env)
    status, headers, _ = request("POST", f"{gateway.url}/v1/chat/completions", CHAT)
    assert status == 200
    assert headers["x-breakeven-arm"] == "pool/plain"

    def stores() -> Any:
        return json.loads(request("GET", f"{gateway.url}/readyz")[2])["stores"]

    wait_until(lambda: "Connection refused" in stores()["redis"]["detail"])
    wait_until(lambda: stores()["database"]["detail"] not in ("", "not read yet"))
    assert (stores()["redis"]["ok"], stores()["database"]["ok"]) == (False, False)


def test_a_backend_that_talks_nonsense_is_503(upstream: Scripted, start_gateway: Start) -> None:
    gateway = start_gateway(policy_text(("pool", "openai", upstream.url)))

    async def nonsense(_: web.Request, __: dict[str, Any]) -> web.Response:
        return web.Response(body=b"<html>hello</html>")

    upstream.handler = nonsense
    status, error = refused(gateway, CHAT)
    assert (status, error["code"]) == (503, "backend_unreachable")


def run_gateway(*options: str, data_dir: Path) -> Result:
    from cli.gateway import gateway as command

    return CliRunner().invoke(command, ["--data-dir", str(data_dir), "--port", "0", *options])


def test_the_command_explains_a_bad_policy(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("version: 1\nrules:\n  - name: a\n    path: fast\n")
    done = run_gateway("--policy", str(bad), data_dir=tmp_path)
    assert done.exit_code == 1
    assert f"{bad}:4:11: error:" in done.stderr


def test_the_command_explains_a_port_in_use(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = run_gateway("--port", str(taken.getsockname()[1]), data_dir=tmp_path)
    assert done.exit_code == 1
    assert "Address already in use" in done.stderr
    assert "--port" in done.stderr


def test_the_command_refuses_a_public_address_without_keys(tmp_path: Path) -> None:
    done = run_gateway("--host", "0.0.0.0", data_dir=tmp_path)
    assert done.exit_code == 1
    assert "breakeven keys create" in done.stderr


def test_the_command_explains_a_malformed_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BREAKEVEN_KEEPALIVE_S", "soon")
    done = run_gateway(data_dir=tmp_path)
    assert done.exit_code == 1
    assert "BREAKEVEN_KEEPALIVE_S='soon': expected seconds" in done.stderr
