"""OpenAI's responses, one struct each, with the extension's `metrics`. Filled by `render.py`."""

from __future__ import annotations

from typing import Any

import msgspec

from engine.messages import EngineMetrics


class PromptTokensDetails(msgspec.Struct):
    """Prompt tokens whose KV was reused."""

    cached_tokens: int = 0


class CompletionTokensDetails(msgspec.Struct):
    """Predicted Outputs only: speculation is reported in `metrics`."""

    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0
    reasoning_tokens: int = 0


class Usage(msgspec.Struct):
    """Tokens in and out."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class TopLogprob(msgspec.Struct):
    """One token and its log-probability."""

    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(msgspec.Struct):
    """One emitted token, its log-probability and the most likely alternatives."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    """`logprobs` of the chat endpoint."""

    content: list[ChatLogprob]
    refusal: None = None


class CompletionLogprobs(msgspec.Struct):
    """`logprobs` of the completions endpoint."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]] | None
    text_offset: list[int]


class FunctionCall(msgspec.Struct):
    """Which function, with which arguments (a string of JSON)."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct):
    """One call that the model wants made; `index` in streams only."""

    id: str
    function: FunctionCall
    type: str = "function"
    index: int | msgspec.UnsetType = msgspec.UNSET


class ChatMessage(msgspec.Struct):
    """The assistant's answer; content is null where there are only tool calls."""

    content: str | None
    role: str = "assistant"
    refusal: None = None
    tool_calls: list[ToolCall] | msgspec.UnsetType = msgspec.UNSET


class ChatDelta(msgspec.Struct, omit_defaults=True):
    """What a chunk adds."""

    role: str | None = None
    content: str | None = None
    tool_calls: list[ToolCall] | None = None


class ChatChoice(msgspec.Struct):
    """One answer."""

    index: int
    message: ChatMessage
    finish_reason: str
    logprobs: ChatLogprobs | None = None


class ChatChunkChoice(msgspec.Struct):
    """One answer's part of a chunk."""

    index: int
    delta: ChatDelta
    finish_reason: str | None = None
    logprobs: ChatLogprobs | None = None


class CompletionChoice(msgspec.Struct):
    """One completion, or its part of a chunk."""

    index: int
    text: str
    finish_reason: str | None = None
    logprobs: CompletionLogprobs | None = None


class Envelope(msgspec.Struct):
    """Response or chunk of both endpoints; absent `usage` and `metrics` are left out."""

    id: str
    object: str
    created: int
    model: str
    choices: list[Any]
    system_fingerprint: str
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
    metrics: EngineMetrics | msgspec.UnsetType | None = msgspec.UNSET


class ModelCard(msgspec.Struct):
    """One served model."""

    id: str
    created: int
    max_model_len: int
    root: str
    object: str = "model"
    owned_by: str = "breakeven"
    parent: None = None


class ModelList(msgspec.Struct):
    """`GET /v1/models`."""

    data: list[ModelCard]
    object: str = "list"


class Health(msgspec.Struct, omit_defaults=True):
    """`GET /health`."""

    status: str
    detail: str = ""
