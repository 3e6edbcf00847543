"""Server-sent events of the gateway's own making: errors in mid-stream. Called by `chat.py`."""

from __future__ import annotations

import msgspec

from gateway.api.errors import ErrorBody
from gateway.relay import DONE


def error_event(error: ErrorBody) -> bytes:
    """Return the event that OpenAI's clients raise as an error, followed by the end of the stream."""
    return b"data: " + msgspec.json.encode({"error": error}) + b"\n\n" + DONE
