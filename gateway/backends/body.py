"""What goes upstream: the client's own bytes with as little changed as possible. Pure; called by the adapters."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.types import GenerateRequest

_encoder = msgspec.json.Encoder()
_USAGE = {"include_usage": True}


def upstream_body(
    request: GenerateRequest, *, model: str, fields: dict[str, Any] | None = None, strip: tuple[str, ...] = ()
) -> bytes:
    """Return the body to send: the client's bytes with `fields` set, `speculation` and `strip` gone, usage asked for.

    New fields are spliced in before the closing brace; only where a field has to go or to change is the body encoded
    again, because a long prompt costs more to encode than everything else on the way.
    """
    body = request.body
    added: dict[str, Any] = dict(fields or {})
    if model and model != request.model:
        added["model"] = model
    if request.stream and not request.include_usage:
        given = body.get("stream_options")
        added["stream_options"] = {**given, **_USAGE} if isinstance(given, dict) else _USAGE
    gone = [name for name in ("speculation", *strip) if name in body]
    raw = request.raw
    if gone or not raw or any(name in body for name in added):
        merged = {name: value for name, value in body.items() if name not in gone}
        merged.update(added)
        return _encoder.encode(merged)
    if not added:
        return raw
    return b"".join((raw.rstrip()[:-1], b"," if body else b"", _encoder.encode(added)[1:]))
