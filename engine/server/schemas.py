"""OpenAI's requests as they arrive: types only; ranges and meaning are checked in `params.py`.

Unknown fields are ignored, as OpenAI's clients keep adding some that do not concern the engine.
"""

from __future__ import annotations

from typing import Any, Literal, TypeVar, get_args

import msgspec

from engine.errors import RequestRejected
from engine.messages import Speculation

Role = Literal["system", "developer", "user", "assistant", "tool", "function"]
FormatType = Literal["text", "json_object", "json_schema"]


class ContentPart(msgspec.Struct):
    """One part of a message's content; only text can be served."""

    type: str
    text: str | None = None
    refusal: str | None = None


class Message(msgspec.Struct):
    """One turn. An assistant's content may be empty, null or absent."""

    role: Role
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None


class StreamOptions(msgspec.Struct):
    """What a stream carries beside the deltas."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    """vLLM's: usage so far in every chunk."""


class Prediction(msgspec.Struct):
    """Predicted Outputs: text that the answer is expected to repeat."""

    type: Literal["content"]
    content: str | list[ContentPart]


class JsonSchemaFormat(msgspec.Struct):
    """`response_format.json_schema`."""

    schema: dict[str, Any] | None = None
    name: str | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct):
    """How the answer must be formed."""

    type: FormatType
    json_schema: JsonSchemaFormat | None = None


class SamplingFields(msgspec.Struct, kw_only=True):
    """What both endpoints share."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    ignore_eos: bool | None = None
    response_format: ResponseFormat | None = None
    prediction: Prediction | None = None
    speculation: Speculation | None = None
    cache_salt: str | None = None
    """vLLM's: prefixes and suffixes are reused only between requests with the same salt (the gateway's tenants)."""


class ChatRequest(SamplingFields, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    functions: list[dict[str, Any]] | None = None


class CompletionRequest(SamplingFields, kw_only=True):
    """`POST /v1/completions`."""

    prompt: str | list[str | int | list[int]]
    logprobs: int | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None


Body = TypeVar("Body", ChatRequest, CompletionRequest)


def decode(raw: bytes, kind: type[Body]) -> Body:
    """Read a request's body. Raises RequestRejected with the field's path in `param`."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        message, param = _explain(str(error))
        raise RequestRejected(message, param=param, code=_code(str(error))) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestRejected(f"the body is not valid JSON: {error}", code="invalid_json") from error


def _code(text: str) -> str:
    """Return the error's code, the same as the gateway gives."""
    if text.startswith("Object missing required field "):
        return "missing_required_parameter"
    return "invalid_type" if ", got `" in text else "invalid_value"


def _explain(text: str) -> tuple[str, str | None]:
    """Turn msgspec's ``Expected `int`, got `str` - at `$.n` `` into a message and the field's path."""
    what, _, where = text.partition(" - at ")
    path = where.strip("`").removeprefix("key in ").strip("`").removeprefix("$").removeprefix(".").replace("[...]", "")
    if what.startswith("Object missing required field "):
        field = what.removeprefix("Object missing required field ").strip("`")
        path = f"{path}.{field}" if path else field
        return f"{path}: this field is required", path
    what = what[:1].lower() + what[1:].replace("`", "")
    choices = get_args(Role if path.endswith(".role") else FormatType if path == "response_format.type" else None)
    if choices and what.startswith("invalid enum value "):
        what = f"expected one of {', '.join(choices)}, got {what.removeprefix('invalid enum value ')}"
    return (f"{path}: {what}", path) if path else (f"the body: {what}", None)
