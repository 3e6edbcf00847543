"""Finished requests as OpenTelemetry spans and metrics, over OTLP/HTTP. Needs the extra `telemetry`; for `gateway.app`.

Names are those of the GenAI semantic conventions as the pinned `opentelemetry-semantic-conventions` has them; what they
do not know (task, path, arm, acceptance) is under `breakeven.`. The request's path appends to a queue; a thread makes
spans of it and sends them. A collector that is away costs telemetry only: the queue is bounded, the oldest are dropped.
OpenTelemetry's own variables say how often it is sent (`OTEL_BSP_SCHEDULE_DELAY`, `OTEL_METRIC_EXPORT_INTERVAL`).
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from importlib import metadata
from typing import Any

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.metrics import Histogram
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.metrics.view import ExplicitBucketHistogramAggregation, View
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes as gen_ai
from opentelemetry.semconv._incubating.metrics import gen_ai_metrics as names
from opentelemetry.semconv.attributes import error_attributes
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from gateway.telemetry import Trace
from gateway.types import RequestRecord

log = logging.getLogger(__name__)
_QUEUE = 10_000
_EVERY_S = 0.25
_SECONDS = (0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class OtlpExporter:
    """Sends to one collector."""

    def __init__(self, endpoint: str) -> None:
        resource = Resource.create({"service.name": "breakeven", "service.version": metadata.version("breakeven")})
        self._resource = resource
        self._scope = InstrumentationScope("breakeven.gateway", metadata.version("breakeven"))
        self._spans = BatchSpanProcessor(OTLPSpanExporter(endpoint=f"{endpoint}/v1/traces"))
        reader = PeriodicExportingMetricReader(OTLPMetricExporter(endpoint=f"{endpoint}/v1/metrics"))
        view = View(instrument_name="gen_ai.server.*", aggregation=ExplicitBucketHistogramAggregation(_SECONDS))
        tokens = View(instrument_name=names.GEN_AI_CLIENT_TOKEN_USAGE, aggregation=_token_buckets())
        self._meters = MeterProvider([reader], resource, views=[tokens, view])
        meter = self._meters.get_meter("breakeven.gateway")
        self._duration: Histogram = meter.create_histogram(names.GEN_AI_SERVER_REQUEST_DURATION, "s")
        self._first: Histogram = meter.create_histogram(names.GEN_AI_SERVER_TIME_TO_FIRST_TOKEN, "s")
        self._per_token: Histogram = meter.create_histogram(names.GEN_AI_SERVER_TIME_PER_OUTPUT_TOKEN, "s")
        self._tokens: Histogram = meter.create_histogram(names.GEN_AI_CLIENT_TOKEN_USAGE, "{token}")
        self._queue: deque[tuple[RequestRecord, Trace]] = deque(maxlen=_QUEUE)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="telemetry", daemon=True)
        self._thread.start()

    def submit(self, record: RequestRecord, trace: Trace) -> None:
        """Take one finished request; nothing but an append."""
        self._queue.append((record, trace))

    def close(self) -> None:
        """Send what is left and stop."""
        self._ended.set()
        self._thread.join(5.0)
        self._spans.shutdown()  # type: ignore[no-untyped-call]  # OpenTelemetry leaves it untyped
        self._meters.shutdown(5000)

    def _work(self) -> None:
        while not self._ended.wait(_EVERY_S):
            self._drain()
        self._drain()

    def _drain(self) -> None:
        while self._queue:
            record, trace = self._queue.popleft()
            try:
                self._spans.on_end(self._span(record, trace))
                self._measure(record)
            except Exception:  # one odd record must not end the thread
                log.exception("telemetry of request %s", record.request_id)

    def _span(self, record: RequestRecord, trace: Trace) -> ReadableSpan:
        sampled = TraceFlags(int(trace.flags, 16))
        context = SpanContext(int(trace.trace_id, 16), int(trace.span_id, 16), False, sampled)
        parent = None
        if trace.parent_id:
            parent = SpanContext(int(trace.trace_id, 16), int(trace.parent_id, 16), True, sampled)
        return ReadableSpan(
            f"{_operation(record)} {record.model}",
            context=context,
            parent=parent,
            resource=self._resource,
            attributes=_attributes(record) | _details(record),
            kind=SpanKind.SERVER,
            status=Status(StatusCode.ERROR if record.is_error else StatusCode.UNSET),
            start_time=round(record.at * 1e9),
            end_time=round((record.at + record.e2e_s) * 1e9),
            instrumentation_scope=self._scope,
        )

    def _measure(self, record: RequestRecord) -> None:
        common = _attributes(record)
        self._duration.record(record.e2e_s, common)
        if record.ttft_s is not None:
            self._first.record(record.ttft_s, common)
        if record.tpot_s is not None:
            self._per_token.record(record.tpot_s, common)
        for kind, count in (("input", record.prompt_tokens), ("output", record.completion_tokens)):
            if count:
                self._tokens.record(count, common | {gen_ai.GEN_AI_TOKEN_TYPE: kind})


def _token_buckets() -> ExplicitBucketHistogramAggregation:
    return ExplicitBucketHistogramAggregation(tuple(4**power for power in range(1, 14)))


def _operation(record: RequestRecord) -> str:
    return "chat" if record.endpoint == "chat" else "text_completion"


def _attributes(record: RequestRecord) -> dict[str, Any]:
    """Return attributes with few values: those of metrics."""
    found: dict[str, Any] = {
        gen_ai.GEN_AI_OPERATION_NAME: _operation(record),
        gen_ai.GEN_AI_PROVIDER_NAME: "breakeven",
        gen_ai.GEN_AI_REQUEST_MODEL: record.model,
        "breakeven.task": record.task,
        "breakeven.path": record.arm.path,
    }
    if record.status != 200 or record.is_error:
        found[error_attributes.ERROR_TYPE] = record.error_code or str(record.status)
    return found


def _details(record: RequestRecord) -> dict[str, Any]:
    """Return what only spans say. No prompt, no answer, no key."""
    spec = record.spec
    found: dict[str, Any] = {
        "breakeven.request_id": record.request_id,
        "breakeven.arm": str(record.arm),
        "breakeven.reason": record.decision.reason,
        "breakeven.policy": record.decision.policy,
        "breakeven.overhead_s": record.overhead_s,
        gen_ai.GEN_AI_USAGE_INPUT_TOKENS: record.prompt_tokens,
        gen_ai.GEN_AI_USAGE_OUTPUT_TOKENS: record.completion_tokens,
        gen_ai.GEN_AI_RESPONSE_FINISH_REASONS: [record.finish_reason] if record.finish_reason else None,
        "breakeven.rounds": spec.rounds if spec else None,
        "breakeven.accepted": spec.accepted if spec else None,
    }
    return {name: value for name, value in found.items() if value is not None}
