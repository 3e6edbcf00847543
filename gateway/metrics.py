"""Prometheus metrics with bounded labels; `serve` hands each record over, `/metrics` shows the page.

Also vLLM's `vllm:spec_decode_*` names, so that meters made for vLLM read the gateway.
"""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from gateway.policy.lifecycle import Held
from gateway.types import BackendState, RequestRecord

_FINE = (0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.5)
_COARSE = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_OVERHEAD = (0.0001, 0.0002, 0.0003, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.25)


class Metrics:
    """All metrics of one gateway process. Label values come from the policy and a fixed set, never from clients."""

    def __init__(self, states: Callable[[], list[BackendState]], policy: Callable[[], Held] | None = None) -> None:
        self._registry = CollectorRegistry()
        self._states = states
        self._policy = policy
        self._requests = self._counter("breakeven_requests", "Answered requests", "task", "backend", "path", "status")
        self._decisions = self._counter("breakeven_decisions", "Decisions by their state", "state")
        self._fallbacks = self._counter("breakeven_fallbacks", "Requests answered by another arm than decided")
        self._prompt = self._counter("breakeven_prompt_tokens", "Prompt tokens as backends report them", "backend")
        self._completion = self._counter(
            "breakeven_completion_tokens", "Completion tokens as backends report them", "backend", "path"
        )
        self._overhead = self._histogram("breakeven_overhead_seconds", "Arrival to request sent upstream", _OVERHEAD)
        self._ttft = self._histogram("breakeven_ttft_seconds", "Arrival to first token", _COARSE, "path")
        self._tpot = self._histogram("breakeven_tpot_seconds", "(last - first) / (n - 1)", _FINE, "path")
        self._e2e = self._histogram("breakeven_e2e_seconds", "Arrival to end of answer", _COARSE, "path")
        self._rounds = self._counter("vllm:spec_decode_num_drafts", "Speculation rounds")
        self._drafted = self._counter("vllm:spec_decode_num_draft_tokens", "Draft tokens")
        self._accepted = self._counter("vllm:spec_decode_num_accepted_tokens", "Accepted draft tokens")
        self._up = Gauge("breakeven_backend_up", "1 where the backend can answer", ["backend"], registry=self._registry)
        self._running = Gauge(
            "breakeven_backend_running", "Sequences decoding at the backend", ["backend"], registry=self._registry
        )
        self._in_force = self._gauge("breakeven_policy_info", "1 for the policy in force", "hash", "origin")
        self._since = self._gauge("breakeven_policy_since_seconds", "Unix time at which it came into force here")
        self._rejected = self._gauge("breakeven_policy_rejected", "1 while a newer policy is refused")
        self._rejections = self._gauge("breakeven_policy_rejections", "Policies refused since the start")
        self._reloads = self._gauge("breakeven_policy_reloads", "Policies that came into force since the start")
        self._children: dict[tuple[str, ...], _Children] = {}

    def _counter(self, name: str, about: str, *labels: str) -> Counter:
        return Counter(name, about, labels, registry=self._registry)

    def _gauge(self, name: str, about: str, *labels: str) -> Gauge:
        return Gauge(name, about, labels, registry=self._registry)

    def _histogram(self, name: str, about: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(name, about, labels, buckets=buckets, registry=self._registry)

    def submit(self, record: RequestRecord) -> None:
        """Count one request."""
        arm = record.arm
        labels = (record.task, arm.backend, arm.path, str(record.status))
        children = self._children.get(labels)
        if children is None:
            children = self._children[labels] = _Children(self, labels)
        children.requests.inc()
        self._decisions.labels(record.decision.state).inc()
        if record.fallback:
            self._fallbacks.inc()
        if record.prompt_tokens:
            children.prompt.inc(record.prompt_tokens)
        if record.completion_tokens:
            children.completion.inc(record.completion_tokens)
        self._overhead.observe(record.overhead_s)
        if record.ttft_s is not None:
            children.ttft.observe(record.ttft_s)
        if record.tpot_s is not None:
            children.tpot.observe(record.tpot_s)
        children.e2e.observe(record.e2e_s)
        if record.spec is not None and record.spec.rounds:
            self._rounds.inc(record.spec.rounds)
            self._drafted.inc(record.spec.drafted)
            self._accepted.inc(record.spec.accepted)

    def page(self) -> bytes:
        """Return the page in Prometheus's text format."""
        self._up.clear()
        self._running.clear()
        for state in self._states():
            self._up.labels(state.name).set(1 if state.healthy else 0)
            self._running.labels(state.name).set(state.running)
        if self._policy is not None:
            self._tell_policy(self._policy())
        return generate_latest(self._registry)

    def _tell_policy(self, held: Held) -> None:
        self._in_force.clear()
        self._in_force.labels(held.policy.hash, held.origin).set(1)
        self._since.set(held.since)
        self._rejected.set(1 if held.rejected else 0)
        self._rejections.set(held.rejections)
        self._reloads.set(held.reloads)


class _Children:
    """The labelled counters of one combination: looked up once, because a lookup costs more than an increment."""

    __slots__ = ("completion", "e2e", "prompt", "requests", "tpot", "ttft")

    def __init__(self, metrics: Metrics, labels: tuple[str, ...]) -> None:
        _, backend, path, _ = labels
        self.requests = metrics._requests.labels(*labels)
        self.prompt = metrics._prompt.labels(backend)
        self.completion = metrics._completion.labels(backend, path)
        self.ttft = metrics._ttft.labels(path)
        self.tpot = metrics._tpot.labels(path)
        self.e2e = metrics._e2e.labels(path)
