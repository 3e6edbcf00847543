"""Headers in and out of the two generating endpoints. Values are ASCII whatever a policy or a model is called."""

from __future__ import annotations

from functools import lru_cache

from litestar.types import HTTPScope

from gateway.access import Admission
from gateway.api.errors import ErrorAnswer
from gateway.serve import Exchange

Pairs = list[tuple[bytes, bytes]]
_JSON = (b"content-type", b"application/json")
_STREAM: Pairs = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


def read_headers(scope: HTTPScope) -> dict[str, str]:
    """Return the request's headers, names in lower case; of a repeated one the last."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


@lru_cache(maxsize=512)
def usual_value(text: str) -> bytes:
    """Return the header value of what is said in answer after answer."""
    return ascii_value(text)


def ascii_value(text: str) -> bytes:
    """Return a header value: one line of printable ASCII."""
    raw = text.encode("ascii", "replace")
    return raw if raw.isascii() and text.isprintable() else bytes(c if 32 <= c < 127 else 63 for c in raw)


def response_headers(exchange: Exchange, admission: Admission, length: int) -> Pairs:
    """Return the headers of a good answer; `length` counts only where it is not a stream."""
    headers = _about(exchange)
    headers += admission.headers
    if exchange.request.stream:
        headers += _STREAM
    else:
        headers += (_JSON, (b"content-length", b"%d" % length))
    return headers


def error_headers(
    answer: ErrorAnswer, request_id: str, length: int, admission: Admission | None, exchange: Exchange | None
) -> Pairs:
    """Return the headers of an error; what was decided is told where something was."""
    headers = _about(exchange) if exchange is not None else [(b"x-request-id", ascii_value(request_id))]
    if admission is not None:
        headers += admission.headers
    headers += [(name.encode(), ascii_value(value)) for name, value in answer.headers.items()]
    headers += (_JSON, (b"content-length", b"%d" % length))
    return headers


def _about(exchange: Exchange) -> Pairs:
    decision = exchange.decision
    arm = decision.arm
    return [
        (b"x-request-id", ascii_value(exchange.request.request_id)),
        (b"x-breakeven-task", usual_value(exchange.classification.task)),
        (b"x-breakeven-path", usual_value(arm.path)),
        (b"x-breakeven-arm", usual_value(str(arm))),
        (b"x-breakeven-reason", usual_value(decision.reason)),
        (b"x-breakeven-policy", usual_value(decision.policy)),
        (b"x-breakeven-overhead-ms", b"%.3f" % (exchange.overhead_s * 1e3)),
    ]
