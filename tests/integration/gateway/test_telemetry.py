"""Spans and metrics arrive at a real OTLP receiver, within the client's trace; logs keep secrets."""

from __future__ import annotations

import json
import logging
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from gateway.logs import JsonFormatter, TextFormatter
from gateway.telemetry import trace_of
from tests.fixtures.servers import policy_text, wait_until

CLIENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def collector():
    """An OTLP/HTTP receiver of our own on a free port."""
    got = {"/v1/traces": [], "/v1/metrics": []}

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self):
            raw = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                import gzip

                raw = gzip.decompress(raw)
            got[self.path].append(raw)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", got
    server.shutdown()
    server.server_close()
    thread.join()


def metrics_of(got):
    """Names of all metrics that have arrived: an export may come before the request is counted."""
    return {
        metric.name
        for raw in got["/v1/metrics"]
        for resource in ExportMetricsServiceRequest.FromString(raw).resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


def value(attribute):
    kind = attribute.value.WhichOneof("value")
    return getattr(attribute.value, kind)


def test_a_request_is_a_span_between_the_clients_and_the_backends(collector, upstream, start_gateway, monkeypatch):
    endpoint, got = collector
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "400")
    gateway = start_gateway(policy_text(("pool", "openai", upstream.url)), env={"BREAKEVEN_OTLP_ENDPOINT": endpoint})
    model = httpx.get(f"{gateway.url}/v1/models", timeout=60).json()["data"][0]["id"]
    body = {"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8}
    answer = httpx.post(f"{gateway.url}/v1/chat/completions", json=body, headers={"traceparent": CLIENT}, timeout=60)
    assert answer.status_code == 200
    sent = upstream.headers[-1]["traceparent"]
    wait_until(lambda: bool(got["/v1/traces"]))
    spans = [
        span
        for raw in got["/v1/traces"]
        for resource in ExportTraceServiceRequest.FromString(raw).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    (span,) = spans
    assert span.name == f"chat {model}"
    assert span.trace_id.hex() == CLIENT.split("-")[1] == sent.split("-")[1]
    assert span.parent_span_id.hex() == CLIENT.split("-")[2]
    assert span.span_id.hex() == sent.split("-")[2]
    told = {attribute.key: value(attribute) for attribute in span.attributes}
    assert told["gen_ai.operation.name"] == "chat"
    assert told["breakeven.path"] == "plain"
    assert told["breakeven.request_id"] == answer.headers["x-request-id"]
    assert "hello" not in str(span)
    wait_until(lambda: {"gen_ai.server.request.duration", "gen_ai.client.token.usage"} <= metrics_of(got))


@pytest.mark.parametrize(
    "sent", [None, "", "rubbish", f"00-{'0' * 32}-b7ad6b7169203331-01", CLIENT.replace("00-", "ff-", 1)]
)
def test_an_invalid_traceparent_begins_a_trace_of_its_own(sent):
    trace = trace_of(sent)
    assert trace.parent_id == ""
    assert trace_of(trace.header).trace_id == trace.trace_id


def record(message, **more):
    made = logging.LogRecord("gateway.x", logging.ERROR, __file__, 1, message, (), None)
    for name, item in more.items():
        setattr(made, name, item)
    return made


@pytest.mark.parametrize("formatter", [JsonFormatter(), TextFormatter()])
def test_no_secret_is_logged(formatter):
    secret = "bk-0123456789ab-verysecretpart"
    line = formatter.format(
        record(f"no: Bearer {secret}, redis://me:pass-word@host/0, sk-proj0123456789abcdef; key {secret}")
    )
    for part in ("verysecretpart", "pass-word", "0123456789abcdef"):
        assert part not in line
    assert "redis://me:" in line


def test_json_lines_have_the_requests_id():
    told = json.loads(JsonFormatter().format(record("audit of request req_1: x")))
    assert (told["request_id"], told["level"], told["logger"]) == ("req_1", "error", "gateway.x")
    assert json.loads(JsonFormatter().format(record("unexpected", request_id="req_2")))["request_id"] == "req_2"
