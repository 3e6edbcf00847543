"""What passes through an answer: strips what the client did not ask for, counts and times events. No I/O; for `serve`.

A stream is scanned as bytes; JSON is decoded only for events that carry usage, metrics, an error or a finish reason,
and for the first ones until a token is seen. Only whole events are passed on, so a character is never split.
"""

from __future__ import annotations

import re
from collections import deque
from functools import lru_cache
from typing import Any, Protocol

import msgspec

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode
_KEYS = (b'"usage"', b'"metrics"', b'"error"', b'"timings"', b'"finish_reason":"', b'"finish_reason": "')
_FINGERPRINT = re.compile(rb'"system_fingerprint"\s*:\s*(?:null|"[^"\\]*")')
_MAX_EVENT = 16 << 20
MAX_ITL = 512
_TAIL_BLOCKS = 128
"""Blocks kept for a look at the end of the text."""
DONE = b"data: [DONE]\n\n"


class Tap(Protocol):
    """Who keeps the text of this answer (`gateway.tap`)."""

    def feed(self, block: bytes) -> None:
        """Take whole events."""
        ...

    def take(self, payload: dict[str, Any]) -> None:
        """Take a decoded answer."""
        ...


class Relay:
    """State of one answer, streamed or not."""

    __slots__ = (
        "_field", "_fingerprint", "_insert", "_keep_metrics", "_keep_usage", "_pending", "_tail", "_tap", "_whole",
        "done", "error", "events", "final", "finish_reason", "first_at", "itl", "last_at", "usage",
    )  # fmt: skip

    def __init__(self, *, keep_usage: bool, keep_metrics: bool, fingerprint: str, tap: Tap | None = None) -> None:
        self._keep_usage = keep_usage
        self._keep_metrics = keep_metrics
        self._tap = tap
        self._fingerprint = fingerprint
        self._field, self._insert = _marks(fingerprint)
        self._pending = b""
        self.done = False
        """Whether `[DONE]` went out."""
        self.error: dict[str, Any] | None = None
        self.events = 0
        self.final: dict[str, Any] = {}
        """The chunk (or body) that carried usage or metrics, as it came."""
        self.finish_reason: str | None = None
        self.first_at: float | None = None
        self.last_at = 0.0
        self.itl: list[float] = []
        self._tail: deque[bytes] = deque(maxlen=_TAIL_BLOCKS)
        self.usage: dict[str, Any] | None = None
        self._whole: dict[str, Any] | None = None
        """The answer where it was not streamed."""

    def feed(self, chunk: bytes, now: float) -> bytes:
        """Take bytes from upstream, return those to send now (possibly none)."""
        if self._pending:
            chunk = self._pending + chunk
        if b"\r" in chunk:  # escaped inside JSON strings, so that this touches line ends only
            chunk = chunk.replace(b"\r\n", b"\n")
        cut = chunk.rfind(b"\n\n") + 2
        if cut < 2:
            self._pending = chunk
            if len(chunk) > _MAX_EVENT:
                raise ValueError(f"an event of more than {_MAX_EVENT} bytes")
            return b""
        self._pending = chunk[cut:]
        return self._block(chunk[:cut], now)

    def end(self, now: float) -> bytes:
        """Return what is left when upstream closes, `[DONE]` included where it was not sent.

        Raises ValueError: the stream broke off before its answer was complete.
        """
        left, self._pending = self._pending.strip(), b""
        out = self._block(left + b"\n\n", now) if left.startswith(b"data:") else b""
        if self.done:
            return out
        if self.finish_reason is None and self.error is None:
            raise ValueError("ended its stream in mid-answer")
        self.done = True
        return out + DONE

    def answer(self, body: bytes) -> bytes:
        """Take the whole body of an unstreamed answer, return the one to send. Raises ValueError: not a JSON object."""
        payload = _decode(body)
        if not isinstance(payload, dict):
            raise ValueError("the answer is not a JSON object")
        self._note(payload)
        self._whole = payload
        if self._tap is not None:
            self._tap.take(payload)
        if not self._keep_metrics:
            payload.pop("metrics", None)
        payload["system_fingerprint"] = self._fingerprint
        return _encode(payload)

    def payloads(self) -> list[dict[str, Any]]:
        """Return the last chunks, decoded; the whole answer where it was not streamed."""
        if self._whole is not None:
            return [self._whole]
        found = [_payload(event) for block in self._tail for event in block.split(b"\n\n")]
        return [payload for payload in found if payload is not None]

    def _block(self, block: bytes, now: float) -> bytes:
        """Handle whole events that arrived together."""
        if self.first_at is None:
            self._look_for_token(block, now)
        self.done = block.endswith(b"[DONE]\n\n")
        count = block.count(b"\n\ndata:") + block.startswith(b"data:") - self.done
        self._time(count, now)
        self._tail.append(block)
        if self._tap is not None:
            self._tap.feed(block)
        spans = _special(block)
        if spans:
            block = self._strip(block, spans)
        if b'"system_fingerprint"' in block:
            return _FINGERPRINT.sub(self._field, block)
        if block.startswith(b"data: {"):
            block = self._insert + block[7:]
        return block.replace(b"\n\ndata: {", b"\n\n" + self._insert)

    def _time(self, count: int, now: float) -> None:
        """Note when events came. Those that came together are one arrival: there is no gap between them to speak of."""
        if count <= 0 or self.first_at is None:
            return
        self.events += count
        if self.last_at and len(self.itl) < MAX_ITL:
            self.itl.append(now - self.last_at)
        self.last_at = now

    def _look_for_token(self, block: bytes, now: float) -> None:
        """Set `first_at` at the first event with output: a chunk with only a role is none."""
        at = 0
        while (end := block.find(b"\n\n", at)) >= 0:
            payload = _payload(block[at:end])
            if payload is not None and _has_output(payload):
                self.first_at = now
                return
            at = end + 2

    def _strip(self, block: bytes, spans: list[tuple[int, int]]) -> bytes:
        """Handle the events of a block that carry more than text; the others stay as they are."""
        parts: list[bytes] = []
        at = 0
        for start, end in spans:
            parts += (block[at:start], self._event(block[start:end]))
            at = end
        return b"".join((*parts, block[at:]))

    def _event(self, event: bytes) -> bytes:
        """Handle one event; return it as it shall go out, b"" for not at all."""
        payload = _payload(event)
        if payload is None:
            return event
        self._note(payload)
        changed = False
        if not self._keep_metrics and payload.pop("metrics", None) is not None:
            changed = True
        if not self._keep_usage and "usage" in payload:
            had = payload.pop("usage")
            changed = True
            if had is not None and payload.get("choices") == [] and not payload.get("metrics"):
                return b""
        return b"data: " + _encode(payload) + b"\n\n" if changed else event

    def _note(self, payload: dict[str, Any]) -> None:
        """Remember what the record needs."""
        usage = payload.get("usage")
        if isinstance(usage, dict):
            self.usage = usage
            self.final = dict(payload)
        elif payload.get("metrics") or payload.get("timings"):
            self.final = dict(payload)
        error = payload.get("error")
        if error:
            self.error = error if isinstance(error, dict) else {"message": str(error)}
        choices = payload.get("choices")
        if isinstance(choices, list):
            for choice in choices:
                reason = choice.get("finish_reason") if isinstance(choice, dict) else None
                if isinstance(reason, str):
                    self.finish_reason = reason


@lru_cache(maxsize=256)
def _marks(fingerprint: str) -> tuple[bytes, bytes]:
    """Return a fingerprint as a field of JSON, and as the beginning of an event."""
    field = b'"system_fingerprint":"%s"' % fingerprint.encode()
    return field, b"data: {%s," % field


def _special(block: bytes) -> list[tuple[int, int]]:
    """Return where the events lie that carry more than text. Quotes inside JSON strings are escaped: these are keys."""
    spans: set[tuple[int, int]] = set()
    for key in _KEYS:
        at = block.find(key)
        while at >= 0:
            end = block.find(b"\n\n", at) + 2
            before = block.rfind(b"\n\n", 0, at)
            spans.add((before + 2 if before >= 0 else 0, end))
            at = block.find(key, end)
    return sorted(spans)


def _payload(event: bytes) -> dict[str, Any] | None:
    """Return the JSON object of an event, None for comments, `[DONE]` and what is no object."""
    data = b"\n".join(line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:"))
    try:
        payload = _decode(data)
    except msgspec.DecodeError:
        return None
    return payload if isinstance(payload, dict) else None


def _has_output(payload: dict[str, Any]) -> bool:
    """Tell whether a chunk carries any output: text, reasoning, a tool call, or the end of a choice."""
    choices = payload.get("choices")
    if not isinstance(choices, list):
        return False
    for choice in choices:
        if not isinstance(choice, dict):
            continue
        delta = choice.get("delta")
        fields = delta if isinstance(delta, dict) else choice
        if choice.get("finish_reason") or any(fields[name] for name in fields if name not in ("role", "index")):
            return True
    return False
