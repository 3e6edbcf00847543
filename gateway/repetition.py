"""Tells a repetition loop: an answer that says the same thing over and over. Pure; called when a record is made.

A model caught in a loop accepts nearly every draft and is the fastest arm: its statistics would mislead. The text is
looked at only where there is reason to: a long answer whose drafts were nearly all accepted, or of unknown acceptance.
"""

from __future__ import annotations

from typing import Any

from gateway.relay import Relay
from gateway.types import Spec

MIN_TOKENS = 64
SUSPICIOUS = 0.85
"""Share of accepted draft tokens above which a text is looked at."""
_TAIL = 600
_MIN_SPAN = 160
"""Characters that the repetitions must cover: a line of dashes is no loop."""


def is_loop(relay: Relay, spec: Spec | None, tokens: int | None) -> bool:
    """Tell whether an answer ended in a loop."""
    if tokens is None or tokens < MIN_TOKENS:
        return False
    if spec is not None and spec.drafted and spec.accepted < SUSPICIOUS * spec.drafted:
        return False
    return loops(text_of(relay))


def loops(text: str) -> bool:
    """Tell whether a text ends in five repetitions of the same piece, found by comparing it with itself shifted.

    A periodic text is periodic wherever it is cut, so that a last piece half said does not matter.
    """
    tail = text[-_TAIL:]
    size = len(tail)
    at = size - 1
    while at > 0 and (at := tail.rfind(tail[-1], 0, at)) >= 0:  # a period ends where the last character stood before
        period = size - 1 - at
        span = max(5 * period, _MIN_SPAN)
        if span > size:
            return False
        if tail[-span:-period] == tail[-span + period :]:
            return bool(tail[-period:].strip())
    return False


def text_of(relay: Relay) -> str:
    """Return the end of the answer's text."""
    parts: list[str] = []
    for payload in relay.payloads():
        parts += _texts(payload)
    return "".join(parts)


def _texts(payload: dict[str, Any]) -> list[str]:
    choices = payload.get("choices")
    if not isinstance(choices, list):
        return []
    found = []
    for choice in choices[:1]:
        if isinstance(choice, dict):
            place = choice.get("delta") or choice.get("message") or choice
            text = place.get("content") or place.get("text") if isinstance(place, dict) else None
            if isinstance(text, str):
                found.append(text)
    return found
