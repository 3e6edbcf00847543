"""Checks an OpenAI request and turns it into a `GenerateRequest`; called by `chat.py`. Unknown fields are left alone.

The structs below name only what the gateway looks at. A violation becomes a 400 whose `param` is the field's path.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from engine.messages import Speculation
from gateway.errors import InvalidRequest
from gateway.types import Endpoint

_decode = msgspec.json.Decoder().decode
_PATH = re.compile(r" - at `\$\.?([^`]*)`$")

Text = Annotated[str, Meta(min_length=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Name = Annotated[str, Meta(min_length=1, max_length=256)]


class StreamOptions(msgspec.Struct):
    """`stream_options`."""

    include_usage: bool | None = None


class ResponseFormat(msgspec.Struct):
    """`response_format`; its schema is the engine's business."""

    type: str


class Function(msgspec.Struct):
    """`tools[].function`."""

    name: Text


class Tool(msgspec.Struct):
    """One of `tools`."""

    type: Text
    function: Function | None = None


class Message(msgspec.Struct):
    """One of `messages`. Content may be null for an assistant's turn (checked apart, as it depends on the role)."""

    role: Text
    content: str | list[dict[str, Any]] | None = None


class Common(msgspec.Struct):
    """Fields of both endpoints."""

    model: Name
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: dict[str, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    response_format: ResponseFormat | None = None
    user: str | None = None
    prompt_cache_key: str | None = None


class ChatRequest(Common):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[Message], Meta(min_length=1)] = msgspec.field(default_factory=list)
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    tools: list[Tool] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None


class CompletionRequest(Common):
    """`POST /v1/completions`."""

    prompt: str | list[Any] = ""
    """A text, texts, or token ids of one or several prompts (checked apart)."""
    max_tokens: Annotated[int, Meta(ge=0)] | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    echo: bool | None = None


_SCHEMAS: dict[Endpoint, type[ChatRequest] | type[CompletionRequest]] = {
    "chat": ChatRequest,
    "completions": CompletionRequest,
}
_REQUIRED: dict[Endpoint, str] = {"chat": "messages", "completions": "prompt"}
Checked = ChatRequest | CompletionRequest


def decode_object(raw: bytes) -> dict[str, Any]:
    """Decode a body that must be a JSON object. Raises InvalidRequest."""
    try:
        body = _decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}", code="invalid_json") from error
    if not isinstance(body, dict):
        raise InvalidRequest("the body must be a JSON object", code="invalid_json")
    return body


def check(endpoint: Endpoint, body: dict[str, Any]) -> Checked:
    """Validate the fields that the gateway knows. Raises InvalidRequest naming the field."""
    needed = _REQUIRED[endpoint]
    if body.get(needed) is None:
        raise InvalidRequest(f"missing required field: {needed}", param=needed, code="missing_required_parameter")
    try:
        request = msgspec.convert(body, _SCHEMAS[endpoint])
    except msgspec.ValidationError as error:
        raise violation(error) from error
    if isinstance(request, ChatRequest):
        _check_contents(request.messages)
    else:
        _check_prompt(request.prompt)
    return request


def speculation_of(body: dict[str, Any]) -> Speculation | None:
    """Read the client's own `speculation`. Raises InvalidRequest naming the field."""
    given = body.get("speculation")
    if given is None:
        return None
    try:
        speculation = msgspec.convert({"speculation": given}, _Own).speculation
    except msgspec.ValidationError as error:
        raise violation(error) from error
    if (speculation.k == 0) != (speculation.method == "plain") or not 0 <= speculation.k <= 64:
        raise InvalidRequest(
            "speculation.k must be 0 for method 'plain' and from 1 to 64 for any other", param="speculation.k"
        )
    return speculation


class _Own(msgspec.Struct):
    speculation: Speculation


def _check_contents(messages: list[Message]) -> None:
    """Only an assistant may say nothing: its turn may be all tool calls, or an empty beginning."""
    for index, message in enumerate(messages):
        if message.content is None and message.role not in ("assistant", "function", "tool"):
            raise InvalidRequest(
                f"messages[{index}].content: expected a string or an array of parts, got null",
                param=f"messages[{index}].content",
                code="invalid_type",
            )


def _check_prompt(prompt: str | list[Any]) -> None:
    """A list holds texts only, token ids only, or lists of token ids only, and is not empty."""
    if isinstance(prompt, str):
        return
    if not prompt:
        raise InvalidRequest("prompt: expected at least one prompt", param="prompt", code="invalid_value")
    kinds = {type(part) for part in prompt}
    tokens = kinds == {list} and all(type(token) is int for part in prompt for token in part)
    if not (tokens or kinds in ({str}, {int})):
        message = "prompt: expected a string, an array of strings, or arrays of token ids"
        raise InvalidRequest(message, param="prompt", code="invalid_type")


def violation(error: msgspec.ValidationError) -> InvalidRequest:
    """Translate msgspec's message and path into OpenAI's fields; for every body that an endpoint checks."""
    text = str(error)
    found = _PATH.search(text)
    path = found.group(1) if found else ""
    text = _PATH.sub("", text)
    if "missing required field" in text:
        name = text.rpartition("field `")[2].rstrip("`")
        path = f"{path}.{name}" if path else name
        return InvalidRequest(f"missing required field: {path}", param=path, code="missing_required_parameter")
    code = "invalid_type" if "got `" in text else "invalid_value"
    return InvalidRequest(f"{path}: {text[:1].lower()}{text[1:]}", param=path or None, code=code)
