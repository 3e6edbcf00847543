"""Replicas of one arm: health, load, stickiness, and one that is killed under load."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web

from gateway.backends.base import Target
from gateway.backends.ejection import FAILURES
from gateway.backends.generic import GenericBackend
from gateway.backends.pool import ReplicaPool
from gateway.types import Arm, Decision, GenerateRequest, Identity
from tests.fixtures.servers import (
    GatewayServer,
    Handler,
    Scripted,
    begin_stream,
    chunk,
    completion,
    events,
    request,
    scripted_upstream,
    wait_until,
)

Start = Callable[..., GatewayServer]


def policy(*urls: str) -> str:
    listed = ", ".join(f'"{url}"' for url in urls)
    return f"""
version: 1
tasks: default
backends:
  pool: {{kind: openai, urls: [{listed}], model: m, arms: [plain]}}
rules:
  - {{name: all, path: auto, probe: 0%, holdout: 0%}}
"""


def chat(text: str, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], **fields}


def pool_state(gateway: GatewayServer) -> Any:
    return json.loads(request("GET", f"{gateway.url}/readyz")[2])["backends"]["pool"]


def ask(gateway: GatewayServer, body: dict[str, Any]) -> int:
    return request("POST", f"{gateway.url}/v1/chat/completions", body)[0]


def test_conversations_stay_and_others_spread(
    upstream: Scripted, other_upstream: Scripted, start_gateway: Start
) -> None:
    gateway = start_gateway(policy(upstream.url, other_upstream.url))
    wait_until(lambda: pool_state(gateway)["detail"] == "")
    for _ in range(6):
        assert ask(gateway, chat("same", prompt_cache_key="c1")) == 200
    assert {len(upstream.bodies), len(other_upstream.bodies)} == {0, 6}
    for number in range(30):
        assert ask(gateway, chat(f"{number} is another beginning")) == 200
    assert min(len(upstream.bodies), len(other_upstream.bodies)) >= 5


def test_a_replica_killed_under_load_costs_no_request(upstream: Scripted, start_gateway: Start) -> None:
    with scripted_upstream() as dying:
        gateway = start_gateway(policy(dying.url, upstream.url))
        wait_until(lambda: pool_state(gateway)["detail"] == "")
        for number in range(20):
            assert ask(gateway, chat(f"{number}")) == 200
        assert dying.bodies
    assert [ask(gateway, chat(f"{number}")) for number in range(20)] == [200] * 20
    assert not any(record.fallback for record in gateway.records)
    wait_until(lambda: "1 of 2 replicas down" in pool_state(gateway)["detail"])
    assert pool_state(gateway)["healthy"]


async def dies_after_its_head(request_: web.Request, _: dict[str, Any]) -> web.StreamResponse:
    response = await begin_stream(request_)
    assert request_.transport is not None
    request_.transport.close()
    return response


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_that_has_not_begun_is_given_by_another_replica(
    stream: bool, upstream: Scripted, other_upstream: Scripted, start_gateway: Start
) -> None:
    other_upstream.handler = dies_after_its_head
    gateway = start_gateway(policy(upstream.url, other_upstream.url))
    wait_until(lambda: pool_state(gateway)["detail"] == "")
    for number in range(30):
        status, _, raw = request("POST", f"{gateway.url}/v1/chat/completions", chat(f"{number}", stream=stream))
        assert (status, b'"error"' in raw) == (200, False)
    assert other_upstream.bodies
    assert len(upstream.bodies) == 30


async def breaks(_: web.Request, __: dict[str, Any]) -> web.Response:
    return web.json_response({"error": {"message": "out of memory"}}, status=500)


def test_a_replica_that_fails_requests_but_answers_probes_is_left_out(
    upstream: Scripted, other_upstream: Scripted, start_gateway: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FIRST_S", "LONGEST_S"):  # on a slow machine 40 requests take longer than the usual five seconds
        monkeypatch.setattr(f"gateway.backends.ejection.{name}", 600.0)
    other_upstream.handler = breaks
    gateway = start_gateway(policy(upstream.url, other_upstream.url))
    wait_until(lambda: pool_state(gateway)["detail"] == "")
    statuses = [ask(gateway, chat(f"{number}")) for number in range(40)]
    assert sum(status != 200 for status in statuses) == len(other_upstream.bodies) == FAILURES
    assert f"left out for failing requests: {other_upstream.url}" in pool_state(gateway)["detail"]
    assert pool_state(gateway)["healthy"]


def pacing(pause: float) -> Handler:
    """Answer with ten tokens: one, a pause, and the others. One long pause outweighs what a busy machine adds."""

    async def handler(request_: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        response = await begin_stream(request_)
        await response.write(events(chunk({"content": "x"})))
        await asyncio.sleep(pause)
        await response.write(events(*(chunk({"content": "x"}) for _ in range(9))))
        usage = {"prompt_tokens": 5, "completion_tokens": 10, "total_tokens": 15}
        await response.write(events(chunk({}, "stop"), chunk(None, usage=usage)) + b"data: [DONE]\n\n")
        return response

    return handler


def test_a_replica_that_is_slower_than_the_others_is_left_out(
    upstream: Scripted, other_upstream: Scripted, start_gateway: Start
) -> None:
    upstream.handler, other_upstream.handler = pacing(0.001), pacing(0.2)
    gateway = start_gateway(policy(upstream.url, other_upstream.url))
    wait_until(lambda: pool_state(gateway)["detail"] == "")
    for number in range(150):
        assert ask(gateway, chat(f"{number} is another beginning", stream=True)) == 200
        if "left out" in pool_state(gateway)["detail"]:
            break
    assert f"left out for being slower than the others: {other_upstream.url}" in pool_state(gateway)["detail"]
    before = len(other_upstream.bodies)
    for number in range(200, 210):
        assert ask(gateway, chat(f"{number} is another beginning", stream=True)) == 200
    assert len(other_upstream.bodies) == before


def made(text: str = "x") -> GenerateRequest:
    body = chat(text)
    return GenerateRequest("r", "chat", body, "m", False, False, Identity("k", "n", "app", False), 0.0, 0.0, 1.0, None,
                           raw=json.dumps(body).encode())  # fmt: skip


async def test_the_idlest_replica_is_taken_when_the_own_one_is_busy(
    upstream: Scripted, other_upstream: Scripted
) -> None:
    async def slow(_: web.Request, __: dict[str, Any]) -> web.Response:
        await asyncio.sleep(0.3)
        return web.json_response(completion())

    upstream.handler = other_upstream.handler = slow
    pool = ReplicaPool("pool", [GenericBackend(Target("pool", server.url)) for server in (upstream, other_upstream)])
    await pool.start()
    await asyncio.to_thread(wait_until, lambda: pool.state().healthy and not pool.state().detail)
    decision = Decision(Arm("pool"), "", "ok", "r", "p")
    answers = await asyncio.gather(*(pool.open(made(), decision) for _ in range(8)))
    assert pool.in_flight == 8
    assert pool.state().running == 4
    for answer in answers:
        await answer.read()
        answer.close()
    assert pool.in_flight == 0
    assert sorted((len(upstream.bodies), len(other_upstream.bodies))) in ([3, 5], [4, 4])
    await pool.aclose()


async def overloaded(_: web.Request, __: dict[str, Any]) -> web.Response:
    return web.json_response({"error": {"message": "later"}}, status=503)


@pytest.mark.parametrize("stream", [True, False])
def test_a_replica_without_its_draft_answers_as_a_fallback_to_the_plain_arm(
    stream: bool, upstream: Scripted, other_upstream: Scripted, start_gateway: Start
) -> None:
    upstream.page = "vllm:generation_tokens_total 1\n"
    other_upstream.page = upstream.page + "vllm:spec_decode_num_drafts_total 1\n"
    text = policy(upstream.url, other_upstream.url).replace("[plain]", "[eagle-k3]").replace("openai", "vllm")
    gateway = start_gateway(text)
    wait_until(lambda: "does not speculate" in (told := pool_state(gateway)["detail"]) and "down" not in told)
    said = []
    for handler in (None, overloaded):
        other_upstream.handler = handler
        status, headers, raw = request("POST", f"{gateway.url}/v1/chat/completions", chat("x", stream=stream))
        assert status == 200
        found = re.search(rb'"system_fingerprint":"(.*?)"', raw)
        said.append((headers["x-breakeven-path"], headers["x-breakeven-arm"], found and found[1]))
    gateway.last(2)
    assert [one[:2] for one in said] == [("speculative", "pool/eagle-k3"), ("plain", "pool/plain")]
    assert said[0][2] != said[1][2]
    assert [(record.fallback, record.arm.k) for record in gateway.records] == [(False, 3), (True, 0)]


def test_a_replica_left_out_is_the_last_even_where_none_has_the_arm() -> None:
    replicas = [GenericBackend(Target("pool", f"http://127.0.0.1:{number}")) for number in (1, 2)]
    pool = ReplicaPool("pool", replicas)
    for replica in replicas:
        replica.healthy = True
    pool._ejector.lags(replicas[0])
    for number in range(50):
        assert pool._in_order(str(number), Arm("pool", "ngram", 3)) == replicas[::-1]


@pytest.mark.parametrize("up", [(True, True), (True, False), (False, False)])
def test_the_state_of_a_pool(up: tuple[bool, bool]) -> None:
    replicas = [GenericBackend(Target("pool", f"http://127.0.0.1:{number}")) for number in (1, 2)]
    for replica, healthy in zip(replicas, up, strict=True):
        replica.healthy, replica.detail = healthy, "" if healthy else "down"
        replica.max_model_len, replica.epoch, replica.in_flight = 100 + len(replica.client.url), "e", 3
    state = ReplicaPool("pool", replicas).state()
    assert state.healthy is any(up)
    assert (state.detail == "") is all(up)
    assert state.running == (3 if any(up) else 0)
    before = state.epoch
    replicas[0].epoch = "f"
    assert ReplicaPool("pool", replicas).state().epoch != before
