"""Closes the clock of one request: what was decided, relayed and reported → the record that is kept. For `serve`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from gateway.fingerprint import end_user_of
from gateway.relay import Relay
from gateway.repetition import is_loop
from gateway.types import Classification, Decision, GenerateRequest, RequestRecord, Spec


def make_record(
    request: GenerateRequest,
    classification: Classification,
    decision: Decision,
    relay: Relay | None,
    spec: Spec | None,
    *,
    epoch: str,
    warm_up: bool,
    status: int,
    error_code: str | None,
    overhead_s: float,
    fallback: bool,
    conversation: str,
    secret: bytes,
) -> RequestRecord:
    """Return the record; `relay` is None where nothing was sent upstream."""
    now = time.perf_counter()
    usage = (relay.usage if relay is not None else None) or {}
    completion = _count(usage, "completion_tokens")
    first = relay.first_at if relay is not None else None
    details = usage.get("prompt_tokens_details")
    if relay is not None and relay.error is not None and error_code is None:
        error_code = str(relay.error.get("code") or relay.error.get("type") or "upstream_error")
    return RequestRecord(
        request_id=request.record_id or request.request_id,
        at=request.arrived_at,
        endpoint=request.endpoint,
        model=request.model,
        key_id=request.identity.key_id,
        task=classification.task,
        confidence=classification.confidence,
        source=classification.source,
        arm=decision.arm,
        epoch=epoch,
        decision=decision,
        stream=request.stream,
        temperature=request.temperature,
        status=status,
        error_code=error_code,
        finish_reason=relay.finish_reason if relay is not None else None,
        prompt_tokens=_count(usage, "prompt_tokens"),
        completion_tokens=completion,
        cached_tokens=_count(details, "cached_tokens") if isinstance(details, dict) else None,
        overhead_s=overhead_s,
        ttft_s=None if first is None else first - request.arrived,
        tpot_s=_step_time(spec, completion) if relay is None or first is None else _tpot(relay, completion),
        e2e_s=now - request.arrived,
        itl_s=relay.itl if relay is not None else [],
        spec=spec,
        fallback=fallback,
        warm_up=warm_up,
        loop=relay is not None and is_loop(relay, spec, completion),
        conversation=conversation,
        signals=classification.signals,
        application=request.application,
        end_user=end_user_of(request, secret),
    )


def _tpot(relay: Relay, tokens: int | None) -> float | None:
    """(last − first)/(n − 1), None where n is below 2 or all came at once."""
    if relay.first_at is None or tokens is None or tokens < 2 or relay.last_at <= relay.first_at:
        return None
    return (relay.last_at - relay.first_at) / (tokens - 1)


def _step_time(spec: Spec | None, tokens: int | None) -> float | None:
    """Time per token of an unstreamed answer, from the engine's own clock where it reports one."""
    if spec is None or tokens is None or tokens < 2:
        return None
    if spec.plain_s is None:
        return spec.decode_s / (tokens - 1) if spec.decode_s else None
    total = (spec.draft_s or 0.0) + (spec.verify_s or 0.0) + spec.plain_s
    emitted = sum(spec.step_emitted) or tokens - 1  # a stop string's own tokens took time and are not delivered
    return total / emitted if total > 0 else None


def _count(usage: Mapping[str, Any], name: str) -> int | None:
    value = usage.get(name)
    return value if isinstance(value, int) else None
