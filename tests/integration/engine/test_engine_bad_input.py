"""What a client can get wrong, and the error that it gets: OpenAI's object, all four fields, the field named."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.models.load import load_models
from engine.server.run import make_context
from tests.fixtures.models import serving

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
HELLO = [{"role": "user", "content": "hello"}]


def send(
    url: str, body: Any = None, headers: dict[str, str] | None = None
) -> tuple[int, dict[str, Any], dict[str, str]]:
    """POST (GET without a body) and return status, JSON and headers."""
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers={"Content-Type": "application/json", **(headers or {})})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer), {name.lower(): value for name, value in answer.headers.items()}
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error), {name.lower(): value for name, value in error.headers.items()}


def refused(url: str, path: str, body: Any) -> tuple[int, dict[str, Any]]:
    status, answer, _ = send(url + path, body)
    assert set(answer) == {"error"}
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    assert answer["error"]["message"]
    return status, answer["error"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [*HELLO, {"role": "user", "content": 5}]}, "messages[1].content"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_completion_tokens": -5}, "max_completion_tokens"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": 2.5}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 1.5}, "min_p"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"frequency_penalty": -3}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"logit_bias": {"999": 1}}, "logit_bias"),
        ({"logit_bias": {"hello": 1}}, "logit_bias"),
        ({"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
        ({"logit_bias": {"\u0663": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5"),
        ({"logit_bias": {"5": "x"}}, "logit_bias"),
        ({"seed": 1.5}, "seed"),
        ({"seed": 2**70}, "seed"),
        ({"stop": ["a", ""]}, "stop"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": 5}, "stop"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
        ({"prediction": {"type": "content"}}, "prediction.content"),
        ({"speculation": {"method": "magic", "k": 2}}, "speculation.method"),
        ({"speculation": {"method": "eagle", "k": 2}}, "speculation.method"),
        ({"speculation": {"method": "ngram", "k": 17}}, "speculation.k"),
        ({"speculation": {"method": "ngram", "k": -1}}, "speculation.k"),
        ({"speculation": {"method": "plain", "k": 2}}, "speculation.k"),
        ({"speculation": {"method": "ngram"}}, "speculation.k"),
        ({"speculation": {"method": "ngram", "k": 2, "depth": 3}}, "speculation"),
        (
            {"speculation": {"method": "ngram", "k": 2, "adaptive": {"prior": [1.5]}}},
            "speculation.adaptive.prior",
        ),
        (
            {"speculation": {"method": "ngram", "k": 2, "adaptive": {"break_even": [[2, -1.0]]}}},
            "speculation.adaptive.break_even",
        ),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"functions": [{"name": "f"}]}, "functions"),
    ],
)
def test_chat_names_the_field(engine_url: str, fields: dict[str, Any], param: str) -> None:
    status, error = refused(engine_url, CHAT, {"model": "tiny-target", "messages": HELLO} | fields)
    assert (status, error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert param in error["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": [1, 999]}, "prompt"),
        ({"prompt": [[1], [-1]]}, "prompt[1]"),
        ({"prompt": ["a", 1]}, "prompt[1]"),
        ({"prompt": ["a", []]}, "prompt[1]"),
        ({"suffix": "end"}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"echo": True, "logprobs": 1}, "echo"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"n": 100, "prompt": ["a", "b", "c"]}, "n"),
    ],
)
def test_completions_name_the_field(engine_url: str, fields: dict[str, Any], param: str) -> None:
    status, error = refused(engine_url, COMPLETIONS, {"model": "tiny-target", "prompt": "a"} | fields)
    assert (status, error["param"]) == (400, param)


@pytest.mark.parametrize(
    ("fields", "code", "told"),
    [
        ({"messages": [{"role": "robot", "content": "x"}]}, "invalid_value", "assistant, tool, function, got robot"),
        ({"response_format": {"type": "yaml"}}, "invalid_value", "text, json_object, json_schema, got yaml"),
        ({"messages": [{"content": "x"}]}, "missing_required_parameter", "required"),
        ({"seed": "x"}, "invalid_type", "got str"),
        ({"stop": [""]}, "invalid_value", "not empty"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "invalid_value", "tools"),
    ],
)
def test_errors_carry_a_code_and_say_what_was_expected(
    engine_url: str, fields: dict[str, Any], code: str, told: str
) -> None:
    _, error = refused(engine_url, CHAT, {"model": "tiny-target", "messages": HELLO} | fields)
    assert error["code"] == code
    assert told in error["message"].replace("'", "")


@pytest.mark.parametrize("body", [b"", b"{", b"[1, 2]", b"null", b"\xff\xfe", b'{"model": "a", "model"}', b"[" * 5000])
def test_malformed_json(engine_url: str, body: bytes) -> None:
    status, error = refused(engine_url, CHAT, body)
    assert (status, error["type"], error["param"]) == (400, "invalid_request_error", None)
    assert "JSON" in error["message"] or "object" in error["message"]


@pytest.mark.parametrize("field", ["model", "messages"])
def test_missing_fields_are_named(engine_url: str, field: str) -> None:
    body = {"model": "tiny-target", "messages": HELLO}
    del body[field]
    status, error = refused(engine_url, CHAT, body)
    assert (status, error["param"]) == (400, field)


def test_unknown_model(engine_url: str) -> None:
    status, error = refused(engine_url, CHAT, {"model": "gpt-9", "messages": HELLO})
    assert (status, error["param"], error["code"]) == (404, "model", "model_not_found")
    assert "tiny-target" in error["message"]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_over_long_prompt_has_a_code_of_its_own(engine_url: str, path: str) -> None:
    text = "x" * 1100
    body = {"messages": [{"role": "user", "content": text}]} if path == CHAT else {"prompt": text}
    status, error = refused(engine_url, path, {"model": "tiny-target"} | body)
    assert (status, error["code"]) == (400, "context_length_exceeded")
    assert "1024" in error["message"]


def test_max_tokens_beyond_the_window_is_cut(engine_url: str) -> None:
    body = {"model": "tiny-target", "prompt": "x" * 1000, "max_tokens": 5000, "ignore_eos": True}
    status, answer, _ = send(engine_url + COMPLETIONS, body)
    assert status == 200
    assert answer["usage"]["total_tokens"] == 1024


def test_unknown_route_and_method(engine_url: str) -> None:
    assert refused(engine_url, "/v2/anything", None)[0] == 404
    status, error = refused(engine_url, CHAT, None)
    assert (status, error["code"]) == (405, "method_not_allowed")
    assert "GET is not allowed" in error["message"]


def test_too_large_a_body(engine_url: str) -> None:
    connection = http.client.HTTPConnection(engine_url.removeprefix("http://"), timeout=60)
    connection.putrequest("POST", CHAT)
    connection.putheader("Content-Length", str(65 << 20))
    connection.endheaders()  # refused by its announced size, before the body is sent
    answer = connection.getresponse()
    error = json.load(answer)["error"]
    connection.close()
    assert (answer.status, error["code"], error["param"]) == (413, "request_too_large", None)


@pytest.mark.parametrize("content", [None, "", []])
def test_empty_assistant_turn_is_legal(engine_url: str, content: Any) -> None:
    talk = [*HELLO, {"role": "assistant", "content": content}, *HELLO]
    assert send(engine_url + CHAT, {"model": "tiny-target", "messages": talk, "max_tokens": 2})[0] == 200


def test_unknown_and_null_fields_are_ignored(engine_url: str) -> None:
    nulls = dict.fromkeys(["temperature", "stop", "n", "seed", "tools", "speculation", "response_format", "logit_bias"])
    body = {"model": "tiny-target", "messages": HELLO, "max_tokens": 2, "user": "me", "store": False} | nulls
    assert send(engine_url + CHAT, body)[0] == 200


def test_request_id_is_echoed(engine_url: str) -> None:
    body = {"model": "tiny-target", "messages": HELLO, "max_tokens": 1}
    assert send(engine_url + CHAT, body, {"x-request-id": "mine-1"})[2]["x-request-id"] == "mine-1"
    assert send(engine_url + CHAT, body)[2]["x-request-id"].startswith("chatcmpl-")


def test_tools_are_rendered_where_the_template_knows_them(tiny_tools_model_dir: Path) -> None:
    config = EngineConfig(model=str(tiny_tools_model_dir), dtype="float32", device="cpu", profile=False)
    target, _ = load_models(config)
    body = {"model": "tiny-tools", "messages": HELLO, "max_tokens": 2}
    tools = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}]
    with serving(make_context(EngineCore(target, config), config, target, None)) as url:
        plain, tooled, untooled = (
            send(url + CHAT, body | more)[1]["usage"]["prompt_tokens"]
            for more in ({}, {"tools": tools}, {"tools": tools, "tool_choice": "none"})
        )
        assert tooled > plain + 60
        assert untooled == plain
        status, error = refused(url, CHAT, body | {"tools": tools, "tool_choice": "required"})
        assert (status, error["param"]) == (400, "tool_choice")
        assert send(url + "/v1/engine/info")[1]["has_tool_template"] is True
