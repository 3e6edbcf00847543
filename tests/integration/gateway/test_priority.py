"""A rule's priority reaches servers that take one, and never fails a request at those that do not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from aiohttp import web

from tests.fixtures.servers import Scripted, begin_stream, completion, request

CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
REFUSED = "Got priority -5 but Priority scheduling is not enabled."


def policy(upstream: Scripted, kind: str, more: str = ", priority: -5") -> str:
    return (
        f"version: 1\nbackends:\n  a: {{kind: {kind}, url: '{upstream.url}', arms: plain}}\n"
        f"rules:\n  - {{name: all, holdout: 0%{more}}}\n"
    )


def ask(url: str, **fields: Any) -> tuple[int, bytes]:
    status, _, body = request("POST", f"{url}/v1/chat/completions", {**CHAT, **fields})
    return status, body


async def refuses(req: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """What vLLM does without `--scheduling-policy priority`: a 400, or an error as a stream's first event."""
    if "priority" not in body:
        return web.json_response(completion()) if not body.get("stream") else await Scripted().stream(req, body)
    error = {"error": {"message": REFUSED, "type": "BadRequestError", "param": None, "code": 400}}
    if not body.get("stream"):
        return web.json_response(error, status=400)
    response = await begin_stream(req)
    await response.write(b"data: " + json.dumps(error).encode() + b"\n\ndata: [DONE]\n\n")
    return response


def test_vllm_gets_the_rules_priority_in_place_of_the_clients_own(start_gateway, upstream):
    gateway = start_gateway(policy(upstream, "vllm"))
    assert ask(gateway.url)[0] == 200
    assert ask(gateway.url, priority=-1000)[0] == 200
    assert [body["priority"] for body in upstream.bodies] == [-5, -5]
    assert gateway.last(2).decision.priority == -5


def test_a_rule_without_priority_leaves_the_clients_own(start_gateway, upstream):
    gateway = start_gateway(policy(upstream, "vllm", ""))
    ask(gateway.url)
    ask(gateway.url, priority=3)
    assert [body.get("priority") for body in upstream.bodies] == [None, 3]


@pytest.mark.parametrize("kind", ["openai", "sglang", "llamacpp"])
def test_servers_that_know_no_such_field_are_not_sent_one(start_gateway, upstream, kind):
    gateway = start_gateway(policy(upstream, kind))
    assert ask(gateway.url)[0] == 200
    assert "priority" not in upstream.bodies[0]


@pytest.mark.parametrize("stream", [False, True])
def test_a_server_that_refuses_priorities_is_asked_again_without_and_spared_from_then_on(
    start_gateway, upstream, stream
):
    upstream.handler = refuses
    gateway = start_gateway(policy(upstream, "vllm"))
    for _ in range(3):
        status, body = ask(gateway.url, stream=stream)
        assert status == 200
        assert b"error" not in body
    assert ["priority" in body for body in upstream.bodies] == [True, False, False, False]
    assert gateway.last(3).decision.priority is None
    assert [record.fallback for record in gateway.records] == [False, False, False]


def test_an_error_that_only_mentions_priority_is_the_clients_and_changes_nothing(start_gateway, upstream):
    async def broken(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"error": {"message": "no such tool: set_priority", "code": 400}}, status=400)

    upstream.handler = broken
    gateway = start_gateway(policy(upstream, "vllm"))
    status, body = ask(gateway.url)
    assert status == 400
    assert b"set_priority" in body
    upstream.handler = None
    assert ask(gateway.url)[0] == 200
    assert upstream.bodies[-1]["priority"] == -5


def test_the_clients_own_refused_priority_is_the_clients_error(start_gateway, upstream):
    upstream.handler = refuses
    gateway = start_gateway(policy(upstream, "vllm", ""))
    status, body = ask(gateway.url, priority=-5)
    assert status == 400
    assert REFUSED.encode() in body
