"""The two endpoints in front of a real upstream, spoken to by the real OpenAI client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import openai
import pytest
from aiohttp import web

from tests.fixtures.servers import (
    METRICS,
    USAGE,
    GatewayServer,
    Scripted,
    begin_stream,
    chunk,
    completion,
    events,
    policy_text,
    request,
    streaming,
    wait_until,
)

MESSAGES: list[Any] = [{"role": "user", "content": "Write a Python function that reverses a string."}]
CHAT = {"model": "m", "messages": MESSAGES}
Start = Callable[..., GatewayServer]


@pytest.fixture
def gateway(upstream: Scripted, start_gateway: Start) -> GatewayServer:
    return start_gateway(policy_text(("pool", "openai", upstream.url)))


def client(gateway: GatewayServer, **options: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="any", max_retries=0, **options)


def test_the_openai_client_gets_an_answer_with_headers(gateway: GatewayServer, upstream: Scripted) -> None:
    raw = client(gateway).chat.completions.with_raw_response.create(model="m", messages=MESSAGES, temperature=0)
    answer = raw.parse()
    assert answer.choices[0].message.content == "hello world"
    assert answer.usage is not None
    assert answer.usage.total_tokens == 8
    assert answer.system_fingerprint is not None
    assert answer.system_fingerprint.startswith("fp_")
    headers = raw.headers
    assert headers["x-breakeven-task"] == "code"
    assert headers["x-breakeven-path"] == "plain"
    assert headers["x-breakeven-arm"] == "pool/plain"
    assert headers["x-breakeven-reason"].startswith("plain pool/plain: ")
    assert len(headers["x-breakeven-policy"]) == 12
    assert float(headers["x-breakeven-overhead-ms"]) > 0
    assert headers["x-request-id"] == answer._request_id
    record = gateway.last()
    assert (record.status, record.task, str(record.arm)) == (200, "code", "pool/plain")
    assert (record.prompt_tokens, record.completion_tokens, record.finish_reason) == (5, 3, "stop")
    assert record.e2e_s >= record.overhead_s > 0


def test_the_openai_client_gets_a_stream(gateway: GatewayServer, upstream: Scripted) -> None:
    chunks: list[Any] = []

    async def word_by_word(req: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        response = await begin_stream(req)
        for at, word in enumerate(upstream.words):
            await response.write(events(chunk({"content": word})))
            while len(chunks) <= at:  # noqa: ASYNC110 — so that no two words travel together
                await asyncio.sleep(0.001)
        await response.write(events(chunk({}, "stop"), chunk(None, usage=USAGE)) + b"data: [DONE]\n\n")
        return response

    upstream.handler = word_by_word
    with client(gateway).chat.completions.with_streaming_response.create(
        model="m", messages=MESSAGES, stream=True
    ) as raw:
        assert raw.headers["x-breakeven-arm"] == "pool/plain"
        for one in raw.parse():
            chunks.append(one)  # noqa: PERF402 — one by one
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == "hello wörld"
    assert all(c.usage is None for c in chunks)
    assert {c.system_fingerprint for c in chunks} == {chunks[0].system_fingerprint}
    assert upstream.bodies[0]["stream_options"] == {"include_usage": True}
    record = gateway.last()
    assert (record.completion_tokens, record.finish_reason, record.stream) == (3, "stop", True)
    assert record.ttft_s is not None
    assert 0 < record.ttft_s <= record.e2e_s
    assert len(record.itl_s) >= 2


def test_usage_reaches_those_who_ask_for_it(gateway: GatewayServer) -> None:
    stream = client(gateway).chat.completions.create(
        model="m", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    last = list(stream)[-1]
    assert last.usage is not None
    assert last.usage.completion_tokens == 3
    assert "metrics" not in (last.model_extra or {})


def test_metrics_are_stripped_unless_debug_is_asked_for(gateway: GatewayServer) -> None:
    plain = request("POST", f"{gateway.url}/v1/chat/completions", CHAT)[2]
    shown = request("POST", f"{gateway.url}/v1/chat/completions", CHAT, {"x-breakeven-debug": "1"})[2]
    assert "metrics" not in json.loads(plain)
    assert json.loads(shown)["metrics"] == METRICS
    streamed = request("POST", f"{gateway.url}/v1/chat/completions", {**CHAT, "stream": True})[2]
    assert b'"metrics"' not in streamed
    assert b'"usage"' not in streamed
    assert streamed.endswith(b"data: [DONE]\n\n")
    debugged = request(
        "POST", f"{gateway.url}/v1/chat/completions", {**CHAT, "stream": True}, {"x-breakeven-debug": "1"}
    )[2]
    assert b'"metrics"' in debugged
    assert b'"usage"' not in debugged


def test_unknown_fields_pass_both_ways_and_bytes_are_untouched(gateway: GatewayServer, upstream: Scripted) -> None:
    raw = (
        b'{ "model":"m", "exotic": {"a": [1.50, null]},\n'
        b' "messages":[{"role":"user","content":"\\u00fc \\ud83d\\ude00"}] }'
    )
    status, _, body = request("POST", f"{gateway.url}/v1/chat/completions", raw)
    assert status == 200
    assert upstream.raw[-1] == raw
    assert json.loads(body)["reasoning_extra"] == {"x": 1}
    streamed = request("POST", f"{gateway.url}/v1/chat/completions", raw[:-1] + b',"stream":true}')[2]
    assert streamed.count(b'"logprobs_extra": [1]') == 3
    assert upstream.raw[-1] == raw[:-1] + b',"stream":true,"stream_options":{"include_usage":true}}'


def test_completions_work_too(gateway: GatewayServer, upstream: Scripted) -> None:
    async def answer(_: web.Request, body: dict[str, Any]) -> web.Response:
        choice = {"index": 0, "text": " there", "finish_reason": "length", "logprobs": None}
        usage = {"prompt_tokens": 1, "completion_tokens": 1}
        return web.json_response({"id": "cmpl-1", "object": "text_completion", "choices": [choice], "usage": usage})

    upstream.handler = answer
    made = client(gateway).completions.create(model="m", prompt="hello", max_tokens=1)
    assert made.choices[0].text == " there"
    assert gateway.last().endpoint == "completions"


def test_applications_of_a_task_are_told_apart_by_their_system_prompt(gateway: GatewayServer) -> None:
    for i in range(20):
        system: list[Any] = [{"role": "system", "content": f"You are assistant {i % 2}."}]
        client(gateway).chat.completions.create(model="m", messages=system + MESSAGES)
    wait_until(lambda: len(gateway.records) == 20)
    told = [record.application for record in gateway.records]
    assert told[:10] == [""] * 10, "they have to be seen a few times"
    assert told[18]
    assert told[19]
    assert told[18] != told[19]


def test_a_request_id_is_honoured_and_recorded_once_each(gateway: GatewayServer, upstream: Scripted) -> None:
    for _ in range(2):
        headers = request("POST", f"{gateway.url}/v1/chat/completions", CHAT, {"x-request-id": "trace-7"})[1]
        assert headers["x-request-id"] == "trace-7"
    wait_until(lambda: len(gateway.records) == 2)
    first, second = (record.request_id for record in gateway.records)
    assert first == "trace-7"
    assert second.startswith("trace-7~")
    assert upstream.headers[-1]["x-request-id"] == "trace-7"
    made = request("POST", f"{gateway.url}/v1/chat/completions", CHAT, {"x-request-id": "bad id\u00e9"})[1]
    assert made["x-request-id"].startswith("req_")


async def test_a_client_that_leaves_aborts_the_work_upstream(gateway: GatewayServer, upstream: Scripted) -> None:
    upstream.words = ("x",) * 1000

    async def slow(req: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return await upstream.stream(req, body, 0.02)

    upstream.handler = slow
    async with streaming(f"{gateway.url}/v1/chat/completions", {**CHAT, "stream": True}) as response:
        await response.content.readany()
    await asyncio.to_thread(wait_until, lambda: upstream.aborted == 1)
    record = await asyncio.to_thread(gateway.last)
    assert (record.status, record.error_code) == (499, "client_closed_request")


async def test_a_client_that_leaves_before_the_first_token_aborts_too(
    gateway: GatewayServer, upstream: Scripted
) -> None:
    async def never(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
        await asyncio.sleep(300)
        raise AssertionError("nobody should wait for this")

    async def ask() -> None:
        async with streaming(f"{gateway.url}/v1/chat/completions", CHAT):
            raise AssertionError("there is no answer")

    upstream.handler = never
    asking = asyncio.create_task(ask())
    await asyncio.to_thread(wait_until, lambda: len(upstream.bodies) == 1)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await asyncio.to_thread(wait_until, lambda: upstream.aborted == 1)
    assert (await asyncio.to_thread(gateway.last)).status == 499


def test_an_error_of_the_backend_is_forwarded_with_all_four_fields(gateway: GatewayServer, upstream: Scripted) -> None:
    async def refuse(_: web.Request, __: dict[str, Any]) -> web.Response:
        return web.json_response(
            {"object": "error", "message": "This model's maximum context length is 10 tokens.", "code": 400}, status=400
        )

    upstream.handler = refuse
    with pytest.raises(openai.BadRequestError) as caught:
        client(gateway).chat.completions.create(model="m", messages=MESSAGES)
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.body == {
        "message": "This model's maximum context length is 10 tokens.", "type": "invalid_request_error",
        "param": None, "code": "context_length_exceeded",
    }  # fmt: skip
    assert caught.value.response.headers["x-breakeven-arm"] == "pool/plain"
    assert gateway.last().error_code == "context_length_exceeded"


def test_a_backend_that_refuses_the_gateway_is_not_the_clients_fault(
    gateway: GatewayServer, upstream: Scripted
) -> None:
    async def refuse(_: web.Request, __: dict[str, Any]) -> web.Response:
        return web.json_response({"error": {"message": "bad token"}}, status=401)

    upstream.handler = refuse
    status, headers, body = request("POST", f"{gateway.url}/v1/chat/completions", CHAT)
    assert status == 503
    assert headers["retry-after"] == "1"
    assert json.loads(body)["error"]["type"] == "service_unavailable"


def test_a_stream_that_breaks_off_ends_with_an_error_event(gateway: GatewayServer, upstream: Scripted) -> None:
    async def break_off(req: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        response = await begin_stream(req)
        await response.write(events(chunk({"content": "half a sen"})) + b'data: {"choices": [{"del')
        assert req.transport is not None
        req.transport.close()
        return response

    upstream.handler = break_off
    streamed = request("POST", f"{gateway.url}/v1/chat/completions", {**CHAT, "stream": True})[2]
    parts = streamed.decode().strip().split("\n\n")
    assert len(parts) == 3
    error = json.loads(parts[1].removeprefix("data: "))["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == "backend_unreachable"
    assert parts[2] == "data: [DONE]"
    with pytest.raises(openai.APIError, match=r"connection lost|mid-answer"):
        list(client(gateway).chat.completions.create(model="m", messages=MESSAGES, stream=True))
    assert gateway.last().error_code == "backend_unreachable"


def test_an_error_before_the_first_token_of_a_stream_has_a_real_status(
    gateway: GatewayServer, upstream: Scripted
) -> None:
    async def fail(req: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        response = await begin_stream(req)
        await response.write(events({"error": {"message": "no such adapter", "code": 404}}) + b"data: [DONE]\n\n")
        return response

    upstream.handler = fail
    status, _, body = request("POST", f"{gateway.url}/v1/chat/completions", {**CHAT, "stream": True})
    assert status == 404
    assert json.loads(body)["error"]["message"] == "no such adapter"


def test_patience_ends_between_tokens(upstream: Scripted, start_gateway: Start) -> None:
    gateway = start_gateway(policy_text(("pool", "openai", upstream.url), token_timeout="150ms"))

    async def stall(req: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        response = await begin_stream(req)
        await response.write(events(chunk({"content": "a"})))
        await asyncio.sleep(300)
        return response

    upstream.handler = stall
    streamed = request("POST", f"{gateway.url}/v1/chat/completions", {**CHAT, "stream": True})[2]
    assert b"no token for 0.15 s" in streamed
    wait_until(lambda: upstream.aborted == 1)


@pytest.mark.parametrize("stream", [False, True])
def test_patience_ends_before_the_first_token(upstream: Scripted, start_gateway: Start, stream: bool) -> None:
    gateway = start_gateway(policy_text(("pool", "openai", upstream.url), first_token_timeout="150ms"))

    async def stall(req: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        if stream:
            await begin_stream(req)
        await asyncio.sleep(300)
        raise AssertionError

    upstream.handler = stall
    status, headers, body = request("POST", f"{gateway.url}/v1/chat/completions", {**CHAT, "stream": stream})
    assert status == 503
    assert "retry-after" in headers
    assert "0.15 s" in json.loads(body)["error"]["message"]


def test_a_stale_connection_is_retried_once(upstream: Scripted, start_gateway: Start) -> None:
    kept = {"BREAKEVEN_KEEPALIVE_S": "60"}  # or a busy machine lets it grow old before it is used again
    gateway = start_gateway(policy_text(("pool", "openai", upstream.url)), env=kept)
    assert request("POST", f"{gateway.url}/v1/chat/completions", CHAT)[0] == 200
    calls = 0

    async def slam(req: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        nonlocal calls
        calls += 1
        if calls == 1:
            assert req.transport is not None
            req.transport.close()
        return web.json_response(completion("again"))

    upstream.handler = slam
    status, _, body = request("POST", f"{gateway.url}/v1/chat/completions", CHAT)
    assert status == 200
    assert json.loads(body)["choices"][0]["message"]["content"] == "again"
    assert calls == 2
    assert gateway.last(2).fallback is False
