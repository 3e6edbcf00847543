"""W3C trace context of each request, and where finished requests are told to an OpenTelemetry collector.

Without `BREAKEVEN_OTLP_ENDPOINT` none of this is in a request's way: the client's `traceparent` goes upstream as it
came. With it, `TracedService` gives every request a span of its own, under the client's and above the backend's, and
`gateway.telemetry_export` sends it off, from a thread of its own.
"""

from __future__ import annotations

import os
import re
from typing import Any, NamedTuple, Protocol

from gateway.serve import Exchange, Seen, Service
from gateway.types import GenerateRequest, RequestRecord

_FORM = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_OPEN_AT_MOST = 50_000


class Trace(NamedTuple):
    """One request's place in a trace, hexadecimal as on the wire."""

    trace_id: str
    parent_id: str
    """Empty where the client sent no (valid) `traceparent`."""
    span_id: str
    flags: str

    @property
    def header(self) -> str:
        """What goes upstream as `traceparent`."""
        return f"00-{self.trace_id}-{self.span_id}-{self.flags}"


def trace_of(traceparent: str | None) -> Trace:
    """Return a new span's place: within the client's trace, or in one of its own where it sent none that is valid."""
    match = _FORM.fullmatch(traceparent or "")
    own = os.urandom(8).hex()
    if match is None or not int(match[1], 16) or not int(match[2], 16):
        return Trace(os.urandom(16).hex(), "", own, "01")
    return Trace(match[1], match[2], own, match[3])


class Exporter(Protocol):
    """What finished requests are handed to; never blocks."""

    def submit(self, record: RequestRecord, trace: Trace) -> None:
        """Take one finished request."""
        ...


class TracedService(Service):
    """A service whose requests are spans; also the sink that sees them end."""

    def __init__(self, exporter: Exporter, **parts: Any) -> None:  # noqa: ANN401  # those of `Service`
        super().__init__(**parts)
        self._exporter = exporter
        self._open: dict[str, Trace] = {}
        self.sinks = (*self.sinks, self)

    def begin(self, request: GenerateRequest, seen: Seen) -> Exchange:
        """Begin the exchange and its span. Raises as `Service.begin`."""
        exchange = super().begin(request, seen)
        trace = trace_of(request.headers.get("traceparent"))
        request.headers["traceparent"] = trace.header
        if len(self._open) < _OPEN_AT_MOST:
            self._open[request.record_id or request.request_id] = trace
        return exchange

    def submit(self, record: RequestRecord) -> None:
        """End the span of a request."""
        trace = self._open.pop(record.request_id, None)
        if trace is not None:
            self._exporter.submit(record, trace)
