"""What goes upstream: the client's bytes, spliced where possible, encoded again where a field must go or change."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.messages import Speculation
from gateway.backends.body import upstream_body
from gateway.types import GenerateRequest, Identity


def made(raw: bytes, **fields: Any) -> GenerateRequest:
    body = json.loads(raw)
    defaults: dict[str, Any] = {
        "request_id": "r", "endpoint": "chat", "body": body, "model": body.get("model", ""), "stream": False,
        "include_usage": False, "identity": Identity("k", "n", "app", False), "arrived": 0.0, "arrived_at": 0.0,
        "temperature": 1.0, "max_tokens": None, "raw": raw,
    }  # fmt: skip
    return GenerateRequest(**{**defaults, **fields})


def test_an_unchanged_request_keeps_its_bytes() -> None:
    raw = b'{"model":"m", "messages":[1.50, "\\u00fc"]}\n'
    assert upstream_body(made(raw), model="m") is raw
    assert upstream_body(made(raw), model="") is raw


def test_new_fields_are_spliced_in() -> None:
    raw = b'{"model":"m", "messages":[1.50, "\\u00fc"] }\n'
    body = upstream_body(made(raw), model="m", fields={"speculation": Speculation("ngram", 4)})
    assert body == raw.rstrip()[:-1] + b',"speculation":{"method":"ngram","k":4}}'
    assert upstream_body(made(b"{}", model="m"), model="n") == b'{"model":"n"}'


def test_usage_is_asked_for_in_streams() -> None:
    raw = b'{"model":"m","stream":true}'
    sent = json.loads(upstream_body(made(raw, stream=True), model="m"))
    assert sent["stream_options"] == {"include_usage": True}
    raw = b'{"model":"m","stream":true,"stream_options":{"continuous_usage_stats":true}}'
    sent = json.loads(upstream_body(made(raw, stream=True), model="m"))
    assert sent["stream_options"] == {"continuous_usage_stats": True, "include_usage": True}
    raw = b'{"model":"m","stream":true,"stream_options":{"include_usage":true}}'
    assert upstream_body(made(raw, stream=True, include_usage=True), model="m") is raw


@pytest.mark.parametrize("key", ["speculation", "specul\\u0061tion"])
def test_the_clients_speculation_never_passes(key: str) -> None:
    raw = b'{"model":"m","%s":{"method":"ngram","k":4},"x":1}' % key.encode()
    assert json.loads(upstream_body(made(raw), model="m")) == {"model": "m", "x": 1}
    ours = json.loads(upstream_body(made(raw), model="m", fields={"speculation": {"method": "plain", "k": 0}}))
    assert ours == {"model": "m", "x": 1, "speculation": {"method": "plain", "k": 0}}


def test_a_tenants_own_salt_is_replaced() -> None:
    raw = b'{"model":"m","cache_salt":"mine"}'
    sent = json.loads(upstream_body(made(raw), model="m", fields={"cache_salt": "ours"}, strip=("cache_salt",)))
    assert sent == {"model": "m", "cache_salt": "ours"}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.text(max_size=6) | st.sampled_from(["speculation", "stream_options"]), JSON, max_size=5))
def test_whatever_the_client_sends_arrives_as_it_was(fields: dict[str, Any]) -> None:
    body = {**fields, "model": "m"}
    raw = json.dumps(body).encode()
    sent = json.loads(upstream_body(made(raw, stream=True), model="m", fields={"speculation": 1}))
    assert sent.pop("speculation") == 1
    options = sent.pop("stream_options")
    assert options["include_usage"] is True
    assert sent == {name: value for name, value in body.items() if name not in ("speculation", "stream_options")}
