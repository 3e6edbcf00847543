"""What `store` in a rule keeps of a request: whether, and the text of its answer as it passes. Pure; for `serve`."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec

from gateway.fingerprint import in_share
from gateway.policy import Rule
from gateway.types import GenerateRequest, RequestRecord

_decode = msgspec.json.Decoder().decode
LIMIT = 256 * 1024
"""Characters kept of a prompt, and of an answer."""
_DIGEST = 64 * 1024
"""Bytes of a stream gathered before they are read."""
_TEXTS = ("content", "reasoning_content", "reasoning", "refusal")


def wanted(rule: Rule, request: GenerateRequest, secret: bytes) -> bool:
    """Tell whether a request's text is kept: its rule says so for its share, and the client did not say `store: false`.

    Called for each request: free where the rule keeps nothing.
    """
    share = rule.store.prompts
    if not share or request.body.get("store") is False:
        return False
    return in_share(share, request, secret, b"policy-store")


class Tap:
    """Gathers the text of one answer: whole, or a stream's blocks of events as they pass."""

    __slots__ = ("_blocks", "_choices", "_size", "left", "truncated")

    def __init__(self) -> None:
        self._blocks: list[bytes] = []
        self._size = 0
        self._choices: dict[int, dict[str, Any]] = {}
        self.left = LIMIT
        """Characters that may still be kept."""
        self.truncated = False

    @property
    def size(self) -> int:
        """Bytes gathered, about."""
        return LIMIT - self.left + self._size

    def feed(self, block: bytes) -> None:
        """Take whole events."""
        if self.left > 0:
            self._blocks.append(block)
            self._size += len(block)
            if self._size >= _DIGEST:
                self._digest()
        else:
            self.truncated = True

    def take(self, payload: dict[str, Any]) -> None:
        """Take a decoded answer or chunk."""
        choices = payload.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict):
                index = choice.get("index")
                into = self._choices.setdefault(index if isinstance(index, int) else 0, {})
                fields = choice.get("message") or choice.get("delta")
                self._add(into, fields if isinstance(fields, dict) else {"content": choice.get("text")})

    def choices(self) -> list[dict[str, Any]]:
        """Return what was gathered, choice by choice."""
        self._digest()
        return [{name: _joined(value) for name, value in self._choices[at].items()} for at in sorted(self._choices)]

    def _digest(self) -> None:
        blocks, self._blocks, self._size = b"".join(self._blocks), [], 0
        for event in blocks.split(b"\n\n"):
            data = b"\n".join(line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:"))
            with contextlib.suppress(msgspec.DecodeError):
                payload = _decode(data)
                if isinstance(payload, dict):
                    self.take(payload)

    def _add(self, into: dict[str, Any], fields: dict[str, Any]) -> None:
        for name in _TEXTS:
            value = fields.get(name)
            if isinstance(value, str) and value:
                into.setdefault(name, []).append(self._cut(value))
        calls = fields.get("tool_calls")
        for at, call in enumerate(calls if isinstance(calls, list) else ()):
            function = call.get("function") if isinstance(call, dict) else None
            if isinstance(function, dict):
                index = call.get("index")
                known = into.setdefault("tool_calls", {}).setdefault(index if isinstance(index, int) else at, {})
                for name in ("name", "arguments"):
                    if isinstance(function.get(name), str):
                        known.setdefault(name, []).append(self._cut(function[name]))

    def _cut(self, text: str) -> str:
        """Return as much as may still be kept."""
        if len(text) > self.left:
            self.truncated = True
            text = text[: max(0, self.left)]
        self.left -= len(text)
        return text


def _joined(value: list[str] | dict[int, dict[str, list[str]]]) -> str | list[dict[str, str]]:
    """Join the pieces of a text; of tool calls too."""
    if isinstance(value, dict):
        return [{name: "".join(parts) for name, parts in value[at].items()} for at in sorted(value)]
    return "".join(value)


class Kept(msgspec.Struct):
    """One request whose text is kept, as it waits to be written."""

    body: dict[str, Any]
    size: int
    """Bytes that it takes about."""
    record: RequestRecord
    retention: float
    tap: Tap | None
    """None where nothing was answered."""
