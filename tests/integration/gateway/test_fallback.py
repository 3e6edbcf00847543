"""A backend that fails before the first byte: another answers, and the record says so; after it: an error event."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web

from tests.fixtures.ports import free_port
from tests.fixtures.servers import (
    GatewayServer,
    Scripted,
    begin_stream,
    chunk,
    completion,
    events,
    policy_text,
    request,
    scripted_upstream,
    wait_until,
)

Start = Callable[..., GatewayServer]
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def gateway(upstream: Scripted, other_upstream: Scripted, start_gateway: Start) -> GatewayServer:
    made = start_gateway(policy_text(("one", "openai", upstream.url), ("two", "openai", other_upstream.url)))
    wait_until(
        lambda: all(b["healthy"] for b in json.loads(request("GET", f"{made.url}/readyz")[2])["backends"].values())
    )
    return made


async def fails(_: web.Request, __: dict[str, Any]) -> web.Response:
    return web.json_response({"error": {"message": "out of memory"}}, status=500)


async def says_second(_: web.Request, body: dict[str, Any]) -> web.Response:
    return web.json_response(completion("second"))


def ask(gateway: GatewayServer, **fields: Any) -> tuple[int, dict[str, str], bytes]:
    return request("POST", f"{gateway.url}/v1/chat/completions", {**CHAT, **fields})


def broken(upstream: Scripted, other: Scripted, gateway: GatewayServer, handler: Any) -> Scripted:
    """Make the backend that the gateway prefers misbehave; returns the other one."""
    arm = ask(gateway)[1]["x-breakeven-arm"]
    first, second = (upstream, other) if arm == "one/plain" else (other, upstream)
    first.handler = handler
    return second


@pytest.mark.parametrize("stream", [False, True])
def test_an_error_before_the_first_byte_falls_back(
    gateway: GatewayServer, upstream: Scripted, other_upstream: Scripted, stream: bool
) -> None:
    second = broken(upstream, other_upstream, gateway, fails)
    seen = len(second.bodies)
    status, headers, _ = ask(gateway, stream=stream)
    assert status == 200
    assert len(second.bodies) == seen + 1
    assert "fallback" in headers["x-breakeven-reason"]
    record = gateway.last(2)
    assert record.fallback
    assert record.decision.state == "fallback"
    assert str(record.arm) == headers["x-breakeven-arm"]


def test_a_stream_that_ends_before_its_first_event_falls_back(
    gateway: GatewayServer, upstream: Scripted, other_upstream: Scripted
) -> None:
    async def opens_and_dies(req: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        response = await begin_stream(req)
        assert req.transport is not None
        req.transport.close()
        return response

    broken(upstream, other_upstream, gateway, opens_and_dies)
    status, headers, raw = ask(gateway, stream=True)
    assert status == 200
    assert "fallback" in headers["x-breakeven-reason"]
    assert raw.endswith(b"data: [DONE]\n\n")
    assert b'"error"' not in raw


def test_after_the_first_byte_there_is_no_second_attempt(
    gateway: GatewayServer, upstream: Scripted, other_upstream: Scripted
) -> None:
    async def begins_and_dies(req: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        response = await begin_stream(req)
        await response.write(events(chunk({"content": "a"})))
        await asyncio.sleep(0.05)
        assert req.transport is not None
        req.transport.close()
        return response

    second = broken(upstream, other_upstream, gateway, begins_and_dies)
    seen = len(second.bodies)
    status, _, raw = ask(gateway, stream=True)
    assert status == 200
    assert b'"error"' in raw
    assert len(second.bodies) == seen
    assert not gateway.last(2).fallback


def test_a_refusal_is_the_clients_and_is_not_tried_elsewhere(
    gateway: GatewayServer, upstream: Scripted, other_upstream: Scripted
) -> None:
    async def refuses(_: web.Request, __: dict[str, Any]) -> web.Response:
        return web.json_response({"error": {"message": "bad seed", "param": "seed"}}, status=400)

    second = broken(upstream, other_upstream, gateway, refuses)
    seen = len(second.bodies)
    status, _, raw = ask(gateway)
    assert status == 400
    assert json.loads(raw)["error"]["param"] == "seed"
    assert len(second.bodies) == seen


def test_where_both_fail_the_last_error_is_told(
    gateway: GatewayServer, upstream: Scripted, other_upstream: Scripted
) -> None:
    upstream.handler = other_upstream.handler = fails
    status, _, raw = ask(gateway)
    assert status == 500
    assert json.loads(raw)["error"]["message"] == "out of memory"
    assert len(upstream.bodies) == len(other_upstream.bodies) == 1


def test_a_backend_that_dies_under_load_costs_no_request(start_gateway: Start, upstream: Scripted) -> None:
    port = free_port()
    with scripted_upstream(port=port) as dying:
        gateway = start_gateway(policy_text(("one", "openai", dying.url), ("two", "openai", upstream.url)))
        wait_until(
            lambda: all(
                b["healthy"] for b in json.loads(request("GET", f"{gateway.url}/readyz")[2])["backends"].values()
            )
        )
        assert ask(gateway)[0] == 200
    assert [ask(gateway)[0] for _ in range(10)] == [200] * 10
    assert {str(record.arm) for record in gateway.records[-5:]} == {"two/plain"}
    with scripted_upstream(port=port):
        wait_until(lambda: json.loads(request("GET", f"{gateway.url}/readyz")[2])["backends"]["one"]["healthy"])
        assert ask(gateway)[0] == 200
