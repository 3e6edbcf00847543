"""What an adapter adds to a request and to a streamed chunk: processor time of its own code, recorded answers.

Run with `python -m benchmarks.adapter_overhead [--json]`. Per request: the body with the engine's fields, the headers,
and reading acceptance from the answer. Per chunk: scanning it, stripping what the application did not ask for, and
setting the fingerprint. Connections and the decision are measured by `gateway_overhead`.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from gateway.backends.base import Target
from gateway.backends.body import upstream_body
from gateway.backends.engine import EngineBackend
from gateway.backends.generic import GenericBackend
from gateway.backends.http import HttpBackend
from gateway.backends.llamacpp import LlamaCppBackend
from gateway.backends.sglang import SglangBackend
from gateway.backends.vllm import VllmBackend
from gateway.relay import Relay
from gateway.types import Arm, Decision, GenerateRequest, Identity

RECORDED = Path(__file__).resolve().parents[1] / "tests" / "fixtures" / "recorded" / "vllm-0.32.0.json"
VLLM = json.loads(RECORDED.read_text(encoding="utf-8"))["chat"]
SGLANG = {"spec_verify_ct": 9, "spec_num_proposed_drafts": 36, "spec_correct_drafts_histogram": [3, 2, 2, 1, 1]}
ANSWERS: dict[type[HttpBackend], dict[str, Any]] = {
    GenericBackend: {"usage": VLLM["usage"]},
    VllmBackend: VLLM,
    SglangBackend: {"usage": VLLM["usage"], "sglext": {"spec_tokens_details": SGLANG}},
    LlamaCppBackend: {"usage": VLLM["usage"], "timings": {"draft_n": 40, "draft_n_accepted": 25, "predicted_n": 60}},
    EngineBackend: VLLM,
}
CHUNK = (
    b'data: {"id":"chatcmpl-b2f83c9b37c1154c","object":"chat.completion.chunk","created":1796078489,"model":"m",'
    b'"choices":[{"index":0,"delta":{"content":" token"},"logprobs":null,"finish_reason":null,"token_ids":null}]}\n\n'
)
ROUNDS, REPEAT = 40, 500


def cpu_us(work: Callable[[], object]) -> list[float]:
    """Return processor microseconds per call, one figure a round."""
    figures = []
    for _ in range(ROUNDS):
        began = time.process_time_ns()
        for _ in range(REPEAT):
            work()
        figures.append((time.process_time_ns() - began) / REPEAT / 1000)
    return sorted(figures)


def request_of(prompt: str, *, stream: bool) -> GenerateRequest:
    """Return a request as the gateway holds it."""
    body = {"model": "m", "messages": [{"role": "user", "content": prompt}], "max_tokens": 64, "stream": stream}
    identity = Identity("k", "n", "app", False)
    raw = json.dumps(body).encode()
    return GenerateRequest("r-1", "chat", body, "m", stream, False, identity, 0.0, 0.7, 1.0, None, raw=raw)


def per_request(kind: type[HttpBackend], prompt: str) -> float:
    """Return the median processor time of one adapter's own work on a streamed request, microseconds."""
    arm = Arm("b", "ngram", 4)
    adapter = kind(Target("b", "http://127.0.0.1:9", "served-name", (arm,), secret=b"secret"))
    request, decision = request_of(prompt, stream=True), Decision(arm, "measured", "ok", "everything", "0123456789ab")

    def work() -> None:
        fields = adapter.fields(request, decision)
        upstream_body(request, model=adapter.model, fields=fields, strip=adapter.stripped)
        adapter.headers(request)
        adapter.spec(ANSWERS[kind])

    return median(cpu_us(work))


def per_chunk() -> float:
    """Return the median processor time of relaying one streamed chunk, microseconds."""
    relay = Relay(keep_usage=False, keep_metrics=False, fingerprint="bk-0123456789ab")
    return median(cpu_us(lambda: relay.feed(CHUNK, time.monotonic())))


def measure() -> dict[str, Any]:
    """Return all figures; limits are those of the product's plan."""
    figures: dict[str, Any] = {
        f"{kind.kind}_{name}_us": round(per_request(kind, prompt), 2)
        for kind in ANSWERS
        for name, prompt in (("short", "Hello there."), ("32k_characters", "word " * 6400))
    }
    figures["request_limit_us"] = 300
    figures["chunk_us"] = round(per_chunk(), 2)
    figures["chunk_limit_us"] = 20
    return figures


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true", help="one JSON object on one line")
    figures = measure()
    if parser.parse_args().json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:32} {value}")


if __name__ == "__main__":
    main()
