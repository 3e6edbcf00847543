"""The gateway in front of the real engine process with a tiny model: path, arm, statistics, streams."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import openai
import pytest

from tests.fixtures.servers import GatewayServer, policy_text, request

Start = Callable[..., GatewayServer]
MESSAGES: list[Any] = [{"role": "user", "content": "abc abc abc abc abc"}]


@pytest.fixture
def gateway(engine_url: str, start_gateway: Start) -> GatewayServer:
    return start_gateway(policy_text(("engine", "engine", engine_url)))


def model_of(gateway: GatewayServer) -> str:
    return str(json.loads(request("GET", f"{gateway.url}/v1/models")[2])["data"][0]["id"])


@pytest.mark.slow
def test_forced_paths_are_taken_and_give_the_same_answer(gateway: GatewayServer) -> None:
    model = model_of(gateway)
    listed = json.loads(request("GET", f"{gateway.url}/v1/models")[2])["data"][0]
    assert listed["max_model_len"] == 1024
    assert {"engine/plain", "engine/ngram-k4", "engine/draft_model-k2"} <= set(listed["arms"])
    client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0)
    texts = set()
    for number, (header, arm) in enumerate(
        [("plain", "engine/plain"), ("engine/draft_model-k4", "engine/draft_model-k4"), ("speculative", None)]
    ):
        name = "x-breakeven-arm" if "/" in header else "x-breakeven-path"
        raw = client.chat.completions.with_raw_response.create(
            model=model, messages=MESSAGES, max_tokens=24, temperature=0, extra_headers={name: header}
        )
        answer = raw.parse()
        texts.add(answer.choices[0].message.content)
        assert raw.headers["x-breakeven-path"] == ("plain" if header == "plain" else "speculative")
        if arm is not None:
            assert raw.headers["x-breakeven-arm"] == arm
        record = gateway.last(number + 1)
        assert record.spec is not None
        assert record.epoch
        assert answer.usage is not None
        assert record.completion_tokens == answer.usage.completion_tokens
        assert (record.spec.drafted > 0) == (record.arm.method == "draft_model")
        assert record.tpot_s is not None
        assert "metrics" not in json.loads(raw.text)
    assert len(texts) == 1


@pytest.mark.slow
def test_a_stream_is_counted_and_timed(gateway: GatewayServer) -> None:
    client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0)
    stream = client.chat.completions.create(
        model=model_of(gateway), messages=MESSAGES, max_tokens=16, temperature=0, stream=True,
        extra_headers={"x-breakeven-arm": "engine/ngram-k2"}, extra_body={"ignore_eos": True},
    )  # fmt: skip
    chunks = list(stream)
    assert all(c.usage is None for c in chunks)
    record = gateway.last()
    assert record.completion_tokens == 16
    assert record.finish_reason == "length"
    assert record.spec.rounds + record.spec.undrafted >= 1
    assert record.ttft_s is not None
    assert record.tpot_s is not None
    assert record.tpot_s * 15 <= record.e2e_s


@pytest.mark.slow
def test_an_engines_refusal_is_forwarded(gateway: GatewayServer) -> None:
    model = model_of(gateway)
    body = {"model": model, "messages": [{"role": "user", "content": "x" * 5000}]}
    status, _, answer = request("POST", f"{gateway.url}/v1/chat/completions", body)
    assert status == 400
    assert json.loads(answer)["error"]["code"] == "context_length_exceeded"
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    body = {"model": model, "messages": MESSAGES, "tools": tools}
    status, _, answer = request("POST", f"{gateway.url}/v1/chat/completions", body)
    assert status == 400
    assert json.loads(answer)["error"]["param"] == "tools"


@pytest.mark.slow
def test_a_clients_own_speculation_is_used_where_it_may_set_it(gateway: GatewayServer) -> None:
    body = {
        "model": model_of(gateway), "messages": MESSAGES, "max_tokens": 8, "temperature": 0,
        "speculation": {"method": "ngram", "k": 3},
    }  # fmt: skip
    status, headers, _ = request("POST", f"{gateway.url}/v1/chat/completions", body)
    assert status == 200
    assert headers["x-breakeven-arm"] == "engine/ngram-k3"
    for wrong, param in (({"method": "ngram"}, "speculation.k"), ({"method": "ngram", "k": 0}, "speculation.k"),
                         ({"method": "magic", "k": 2}, "speculation.method")):  # fmt: skip
        status, _, answer = request("POST", f"{gateway.url}/v1/chat/completions", {**body, "speculation": wrong})
        assert (status, json.loads(answer)["error"]["param"]) == (400, param)
