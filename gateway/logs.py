"""What the gateway writes to standard error: lines for people, or one JSON object a line; never a secret.

Called by `cli/gateway.py`. Secrets are taken out of the finished line, wherever they came from: API keys,
bearer tokens, passwords within URLs.
"""

from __future__ import annotations

import logging
import re
import time

import msgspec

_SECRETS = (
    (re.compile(r"\b((?:bk|sk)-[A-Za-z0-9]{4})[A-Za-z0-9_-]{8,}"), r"\1…"),
    (re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}"), r"\1 …"),
    (re.compile(r"(\w+://[^\s:/@]*):[^\s/@]+@"), r"\1:…@"),
)
_REQUEST = re.compile(r"\brequest ([A-Za-z0-9][A-Za-z0-9._:@/+=-]{0,127})")


def redact(text: str) -> str:
    """Return the text without secrets."""
    for pattern, instead in _SECRETS:
        text = pattern.sub(instead, text)
    return text.encode("utf-8", "replace").decode()  # half a surrogate pair would cost the line


class TextFormatter(logging.Formatter):
    """A line for people."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, tracebacks included."""
        return redact(super().format(record))


class JsonFormatter(logging.Formatter):
    """One JSON object: `time` (RFC 3339, UTC), `level`, `logger`, `message`, and where known `request_id`, `error`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        message = record.getMessage()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{stamp}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": message,
        }
        request_id = getattr(record, "request_id", None) or (
            m[1].rstrip(":.,") if (m := _REQUEST.search(message)) else None
        )
        if request_id:
            line["request_id"] = request_id
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return msgspec.json.encode({name: redact(str(value)) for name, value in line.items()}).decode()


def configure(level: str, form: str) -> None:
    """Send all logging to standard error, as `text` or `json`."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])
