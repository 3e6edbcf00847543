"""Compares two answers, message against message: equal, or where they part and how narrow the choice was there. Pure.

In bfloat16 greedy decoding depends on the shape of a batch: two answers may part where the plain path's best two tokens
are within rounding of each other. Such a near tie is no fault of speculation; a wider gap is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from gateway.tap import Tap
from gateway.types import Spec

Outcome = Literal["equal", "near_tie", "different", "unexplained"]
TIE = 0.5
"""Gap in log-probability (that of the logits) up to which two tokens count as tied: four bfloat16 steps at 16 to 32."""
TIE_FLOAT32 = 1e-3
"""The same where the server says that it computes in float32."""
_TEXTS = ("reasoning_content", "reasoning", "content", "refusal")


class Answer(msgspec.Struct):
    """One answer, put together from its pieces."""

    message: dict[str, Any]
    """Texts by field, and `tool_calls` with name and arguments each."""
    finish_reason: str | None = None
    tokens: list[tuple[bytes, float | None]] = msgspec.field(default_factory=list)
    """Each token's bytes, and the gap between the two likeliest there; empty where the server gave none."""
    truncated: bool = False
    spec: Spec | None = None
    """Acceptance as the backend reports it for this answer."""


class Verdict(msgspec.Struct):
    """What a comparison found."""

    outcome: Outcome
    field: str = ""
    """Where they part: `content`, `tool_calls.0.arguments`, …, or `finish_reason`."""
    position: int | None = None
    """Characters that are the same before that."""
    token: int | None = None
    """Tokens of the plain answer before that, where known."""
    gap: float | None = None
    """Difference in log-probability between the plain answer's two likeliest tokens there, where known."""


def answer_of(payload: Mapping[str, Any]) -> Answer:
    """Return the first choice of a whole answer, chat or completion."""
    tap = Tap()
    tap.take(dict(payload))
    gathered = tap.choices()
    choices = payload.get("choices")
    first = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    finish = first.get("finish_reason")
    finish = finish if isinstance(finish, str) else None
    return Answer(gathered[0] if gathered else {}, finish, tokens_of(first.get("logprobs")), tap.truncated)


def tokens_of(logprobs: object) -> list[tuple[bytes, float | None]]:
    """Read OpenAI's `logprobs` of a choice, of chat or completions."""
    if not isinstance(logprobs, Mapping):
        return []
    content = logprobs.get("content")
    if isinstance(content, list):
        return [(_bytes(item), _gap(_tops(item.get("top_logprobs")))) for item in content if isinstance(item, Mapping)]
    texts, tops = logprobs.get("tokens"), logprobs.get("top_logprobs")
    if not isinstance(texts, list):
        return []
    tops = tops if isinstance(tops, list) and len(tops) == len(texts) else [None] * len(texts)
    return [
        (str(text).encode(), _gap(list(top.values()) if isinstance(top, Mapping) else []))
        for text, top in zip(texts, tops, strict=True)
    ]


def _bytes(item: Mapping[str, Any]) -> bytes:
    raw = item.get("bytes")
    if isinstance(raw, list) and all(isinstance(value, int) and 0 <= value < 256 for value in raw):
        return bytes(raw)
    return str(item.get("token", "")).encode()


def _tops(found: object) -> list[Any]:
    return [item.get("logprob") for item in found if isinstance(item, Mapping)] if isinstance(found, list) else []


def _gap(values: Sequence[Any]) -> float | None:
    known = sorted((float(v) for v in values if isinstance(v, int | float) and math.isfinite(v)), reverse=True)
    return known[0] - known[1] if len(known) > 1 else None


def parting(plain: Answer, other: Answer) -> Verdict | None:
    """Return where two answers part (without a gap), None where they are equal."""
    one, two = dict(_parts(plain.message)), dict(_parts(other.message))
    for name in dict.fromkeys((*one, *two)):
        a, b = one.get(name, ""), two.get(name, "")
        if a != b:
            same = next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
            return Verdict("unexplained", name, same)
    if plain.finish_reason and other.finish_reason and plain.finish_reason != other.finish_reason:
        return Verdict("unexplained", "finish_reason")
    return None


def explained(verdict: Verdict, plain: Answer, probed: Answer, tie: float = TIE) -> Verdict:
    """Fill in token and gap from `probed`, the plain answer once more with log-probabilities.

    Nothing is explained where that answer is not the plain one again, or its tokens are not the parting text.
    """
    text = plain.message.get(verdict.field)
    if verdict.position is None or not isinstance(text, str) or probed.message.get(verdict.field) != text:
        return verdict
    if not text.encode().startswith(b"".join(raw for raw, _ in probed.tokens)[: len(text.encode())]):
        return verdict
    before = len(text[: verdict.position].encode())
    end = 0
    for number, (raw, gap) in enumerate(probed.tokens):
        end += len(raw)
        if end > before:
            outcome: Outcome = "unexplained" if gap is None else "near_tie" if gap <= tie else "different"
            return msgspec.structs.replace(verdict, token=number, gap=gap, outcome=outcome)
    return verdict


def _parts(message: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the texts of a message in a fixed order, those of tool calls by number."""
    parts = [(name, message[name]) for name in _TEXTS if isinstance(message.get(name), str)]
    for number, call in enumerate(message.get("tool_calls") or ()):
        parts += [(f"tool_calls.{number}.{name}", call[name]) for name in ("name", "arguments") if name in call]
    return parts
