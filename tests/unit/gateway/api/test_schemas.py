"""Every malformed request names its field; what OpenAI allows passes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.api.schemas import check, decode_object, speculation_of
from gateway.errors import InvalidRequest

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
TEXT: dict[str, Any] = {"model": "m", "prompt": "hi"}


def changed(base: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {**base, **fields}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (changed(CHAT, model=None), "model"),
        (changed(CHAT, model=""), "model"),
        (changed(CHAT, model=["m"]), "model"),
        (changed(CHAT, messages=None), "messages"),
        (changed(CHAT, messages=[]), "messages"),
        (changed(CHAT, messages="hi"), "messages"),
        (changed(CHAT, messages=["hi"]), "messages[0]"),
        (changed(CHAT, messages=[{"content": "hi"}]), "messages[0].role"),
        (changed(CHAT, messages=[{"role": 3, "content": "hi"}]), "messages[0].role"),
        (changed(CHAT, messages=[*CHAT["messages"], {"role": "user", "content": 7}]), "messages[1].content"),
        (changed(CHAT, messages=[{"role": "user", "content": None}]), "messages[0].content"),
        (changed(CHAT, messages=[{"role": "user", "content": ["x"]}]), "messages[0].content[0]"),
        (changed(CHAT, max_tokens=-1), "max_tokens"),
        (changed(CHAT, max_tokens=0), "max_tokens"),
        (changed(CHAT, max_tokens="many"), "max_tokens"),
        (changed(CHAT, max_tokens=1.5), "max_tokens"),
        (changed(CHAT, max_completion_tokens=-5), "max_completion_tokens"),
        (changed(CHAT, temperature=2.1), "temperature"),
        (changed(CHAT, temperature="hot"), "temperature"),
        (changed(CHAT, top_p=0), "top_p"),
        (changed(CHAT, n=0), "n"),
        (changed(CHAT, stream="yes"), "stream"),
        (changed(CHAT, stream_options=[]), "stream_options"),
        (changed(CHAT, stop=4), "stop"),
        (changed(CHAT, presence_penalty=3), "presence_penalty"),
        (changed(CHAT, logit_bias={"5": 101}), "logit_bias[...]"),
        (changed(CHAT, tools=[{"type": "function", "function": {"name": ""}}]), "tools[0].function.name"),
        (changed(CHAT, tools={}), "tools"),
        (changed(CHAT, response_format="json"), "response_format"),
        (changed(CHAT, top_logprobs=21), "top_logprobs"),
    ],
)
def test_a_wrong_chat_field_is_named(body: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check("chat", body)
    assert caught.value.param == param
    assert caught.value.status == 400
    assert caught.value.message


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"model": "m"}, "prompt"),
        (changed(TEXT, prompt=5), "prompt"),
        (changed(TEXT, prompt=[]), "prompt"),
        (changed(TEXT, prompt=["a", 1]), "prompt"),
        (changed(TEXT, prompt=[[1], ["a"]]), "prompt"),
        (changed(TEXT, prompt=[True]), "prompt"),
        (changed(TEXT, max_tokens=-1), "max_tokens"),
        (changed(TEXT, logprobs=True), "logprobs"),
    ],
)
def test_a_wrong_completions_field_is_named(body: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check("completions", body)
    assert caught.value.param == param


@pytest.mark.parametrize(
    "body",
    [
        changed(CHAT, messages=[{"role": "assistant", "content": None}, {"role": "user", "content": ""}]),
        changed(CHAT, messages=[{"role": "assistant", "content": ""}]),
        changed(CHAT, messages=[{"role": "assistant", "tool_calls": []}, {"role": "tool", "content": "7"}]),
        changed(CHAT, messages=[{"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "image_url"}]}]),
        changed(CHAT, temperature=None, max_tokens=None, stop=None, tools=None, stream=None, stream_options=None),
        changed(CHAT, stop=["a", "b"], seed=-1, logit_bias={"5": -100}, n=3, temperature=0, unknown={"deep": [1]}),
    ],
)
def test_what_openai_allows_passes(body: dict[str, Any]) -> None:
    check("chat", body)


@pytest.mark.parametrize("prompt", ["", "a", ["a", "b"], [1, 2], [[1], [2, 3]]])
def test_every_form_of_prompt_passes(prompt: Any) -> None:
    check("completions", changed(TEXT, prompt=prompt, max_tokens=0, echo=True))


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[]", b"null", b'"x"', b"{'a': 1}", b"\xff\xfe", b'{"a": NaN}', b"1" * 9999]
)
def test_what_is_no_json_object_is_told(raw: bytes) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode_object(raw)
    assert caught.value.code == "invalid_json"


def test_deep_nesting_is_refused_not_fatal() -> None:
    with pytest.raises(InvalidRequest):
        decode_object(b'{"a":' * 100_000 + b"1" + b"}" * 100_000)


@pytest.mark.parametrize(
    ("given_", "param"),
    [
        ("ngram", "speculation"),
        ({"k": 1}, "speculation.method"),
        ({"method": "ngram"}, "speculation.k"),
        ({"method": "ngram", "k": 0}, "speculation.k"),
        ({"method": "plain", "k": 2}, "speculation.k"),
        ({"method": "ngram", "k": 65}, "speculation.k"),
        ({"method": "ngram", "k": 2, "adaptive": {"prior": "x"}}, "speculation.adaptive.prior"),
    ],
)
def test_a_wrong_speculation_is_named(given_: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        speculation_of({"speculation": given_})
    assert caught.value.param == param


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from(
    ["messages", "max_tokens", "tools", "stop", "stream_options", "response_format", "n", "user", "x"]
)


@settings(max_examples=80, deadline=None)
@given(st.dictionaries(NAMES, VALUES, max_size=4))
def test_whatever_is_sent_there_is_a_verdict(fields: dict[str, Any]) -> None:
    body = decode_object(json.dumps(changed(CHAT, **fields)).encode())
    try:
        check("chat", body)
    except InvalidRequest as error:
        assert error.param is None or error.param.partition("[")[0].partition(".")[0] in body  # noqa: PT017
