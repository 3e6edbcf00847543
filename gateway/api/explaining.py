"""An OpenAI body and what is assumed around it → the request that `gateway.explain` looks at; also for the CLI."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.api.schemas import ChatRequest, check, decode_object
from gateway.api.wishes import visible_headers
from gateway.applications import application_of
from gateway.errors import InvalidRequest
from gateway.types import Endpoint, GenerateRequest, Identity, PathWish

MODEL_UNKNOWN = "model"
"""Stands for the model where a body to explain names none."""


class Circumstances(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What a request body does not say. Absent: the plainest case."""

    app: str = "anonymous"
    key: str = "anonymous"
    task: str | None = None
    """As if declared by `x-breakeven-task`."""
    path: PathWish = "auto"
    header: dict[str, str] = msgspec.field(default_factory=dict)
    at: float | None = None
    """Unix time of arrival; now where absent."""
    load: int | None = None
    prompt_tokens: int | None = None
    """Estimated from the body where absent."""
    share: float | None = 0.5
    """The conversation's place in [0, 1)."""


def request_to_explain(raw: bytes, around: Circumstances) -> tuple[GenerateRequest, int]:
    """Return the request and its prompt tokens. Raises InvalidRequest naming the field."""
    body = decode_object(raw)
    endpoint: Endpoint = "completions" if "prompt" in body and "messages" not in body else "chat"
    body.setdefault("model", MODEL_UNKNOWN)
    checked = check(endpoint, body)
    headers = {name.lower(): value for name, value in around.header.items()}
    limit = checked.max_tokens
    if isinstance(checked, ChatRequest):
        limit = checked.max_completion_tokens or checked.max_tokens
    request = GenerateRequest(
        request_id="explain",
        endpoint=endpoint,
        body=body,
        model=checked.model,
        stream=bool(checked.stream),
        include_usage=False,
        identity=Identity(key_id=around.key, name=around.app, role="app", may_force=around.path != "auto"),
        arrived=time.perf_counter(),
        arrived_at=time.time() if around.at is None else around.at,
        temperature=1.0 if checked.temperature is None else checked.temperature,
        max_tokens=limit,
        n=checked.n or 1,
        declared_task=around.task,
        path_wish=around.path,
        headers=visible_headers(headers),
        raw=raw,
    )
    request.application = application_of(request)
    tokens = around.prompt_tokens if around.prompt_tokens is not None else 1 + len(raw) // 4
    return request, tokens


def circumstances_of(data: Mapping[str, Any]) -> Circumstances:
    """Read circumstances from JSON values. Raises InvalidRequest naming the field."""
    try:
        return msgspec.convert(data, Circumstances)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"with: {error}", param="with") from error
