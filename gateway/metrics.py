"""Prometheus metrics with bounded labels; `serve` hands each record over, `/metrics` shows the page.

Also vLLM's `vllm:spec_decode_*` names, so that meters made for vLLM read the gateway. Counting is a few additions to
plain numbers per request; the client library only draws the page.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from gateway.policy.lifecycle import Held
from gateway.store_metrics import store_metrics
from gateway.types import BackendState, RequestRecord

_FINE = (
    0.0005, 0.001, 0.0015, 0.002, 0.0025, 0.003, 0.004, 0.005, 0.006, 0.007, 0.008, 0.01, 0.0125, 0.015, 0.02, 0.025,
    0.03, 0.04, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.5,
)  # fmt: skip
"""Fine below 10 ms: there one accelerator's plain and speculative tokens lie."""
_COARSE = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_OVERHEAD = (0.0001, 0.0002, 0.0003, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.25)
Labels = tuple[str, ...]


class Buckets:
    """One histogram by label values."""

    def __init__(self, name: str, about: str, edges: tuple[float, ...], *labels: str) -> None:
        self.name = name
        self._about = about
        self._edges = edges
        self._labels = labels
        self._counts: dict[Labels, list[int]] = {}
        self._sums: dict[Labels, float] = {}

    def observe(self, seconds: float, labels: Labels = ()) -> None:
        """Count one value."""
        counts = self._counts.get(labels)
        if counts is None:
            counts = self._counts[labels] = [0] * (len(self._edges) + 1)
            self._sums[labels] = 0.0
        counts[bisect_left(self._edges, seconds)] += 1
        self._sums[labels] += seconds

    def family(self) -> Metric:
        """Return it in the library's form, buckets cumulative."""
        family = HistogramMetricFamily(self.name, self._about, labels=self._labels)
        for labels, counts in self._counts.items():
            total, buckets = 0, []
            for edge, count in zip((*map(str, self._edges), "+Inf"), counts, strict=True):
                total += count
                buckets.append((edge, total))
            family.add_metric(labels, buckets, self._sums[labels])
        return family


class Metrics:
    """All metrics of one gateway process. Label values come from the policy and a fixed set, never from clients."""

    def __init__(
        self,
        states: Callable[[], list[BackendState]],
        policy: Callable[[], Held] | None = None,
        audits: Mapping[tuple[str, str], int] | None = None,
        stores: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        """`audits` counts losslessness audits by speculative arm and outcome."""
        self._audits: Mapping[tuple[str, str], int] = {} if audits is None else audits
        self._states = states
        self._stores = stores
        self._policy = policy
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self._requests: Counter[Labels] = Counter()
        self._errors: Counter[Labels] = Counter()
        self._decisions: Counter[Labels] = Counter()
        self._prompt: Counter[Labels] = Counter()
        self._completion: Counter[Labels] = Counter()
        self._plain: Counter[str] = Counter()
        self._lengths: Counter[int] = Counter()
        self._alarms: dict[Labels, bool] = {}
        self._overhead = Buckets("breakeven_overhead_seconds", "Arrival to request sent upstream", _OVERHEAD)
        self._ttft = Buckets("breakeven_ttft_seconds", "Arrival to first token", _COARSE, "path")
        self._tpot = Buckets("breakeven_tpot_seconds", "(last - first) / (n - 1)", _FINE, "path")
        self._e2e = Buckets("breakeven_e2e_seconds", "Arrival to end of answer", _COARSE, "path")

    def submit(self, record: RequestRecord) -> None:
        """Count one request."""
        arm = record.arm
        path = (arm.path,)
        self._requests[record.task, arm.backend, arm.path, str(record.status)] += 1
        self._errors[record.task, arm.backend, arm.path] += record.is_error
        self._decisions[(record.decision.state,)] += 1
        numbers = record.decision.numbers
        if (alarm := numbers.get("zero_accept_alarm")) is not None:
            self._alarms[record.task, str(numbers.get("of", arm))] = bool(alarm)
        if record.prompt_tokens:
            self._prompt[(arm.backend,)] += record.prompt_tokens
        if record.completion_tokens:
            self._completion[arm.backend, arm.path] += record.completion_tokens
        self._overhead.observe(record.overhead_s)
        if record.ttft_s is not None:
            self._ttft.observe(record.ttft_s, path)
        if record.tpot_s is not None:
            self._tpot.observe(record.tpot_s, path)
        self._e2e.observe(record.e2e_s, path)
        if record.fallback:
            self._plain["fallbacks"] += 1
        if record.loop:
            self._plain["loops"] += 1
        spec = record.spec
        if spec is not None and spec.rounds:
            self._plain["rounds"] += spec.rounds
            self._plain["drafted"] += spec.drafted
            self._plain["accepted"] += spec.accepted
            for accepted, rounds in enumerate(spec.histogram):
                self._lengths[accepted] += rounds

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics (the library calls this)."""
        yield _counter("breakeven_requests", "Requests", self._requests.items(), "task", "backend", "path", "status")
        about = "Requests that we or a backend failed: 5xx, and streams that broke off"
        yield _counter("breakeven_errors", about, self._errors.items(), "task", "backend", "path")
        yield _counter("breakeven_decisions", "Decisions by their state", self._decisions.items(), "state")
        yield _counter(
            "breakeven_prompt_tokens", "Prompt tokens as backends report them", self._prompt.items(), "backend"
        )
        about = "Completion tokens as backends report them"
        yield _counter("breakeven_completion_tokens", about, self._completion.items(), "backend", "path")
        for name, about, key in (
            ("breakeven_fallbacks", "Requests answered by another backend than decided", "fallbacks"),
            ("breakeven_loops", "Answers that ended in a repetition loop", "loops"),
            ("vllm:spec_decode_num_drafts", "Speculation rounds", "rounds"),
            ("vllm:spec_decode_num_draft_tokens", "Draft tokens", "drafted"),
            ("vllm:spec_decode_num_accepted_tokens", "Accepted draft tokens", "accepted"),
        ):
            yield _counter(name, about, [((), self._plain[key])])
        about = "Greedy answers compared with those of the other path, by speculative arm and outcome"
        yield _counter("breakeven_audits", about, self._audits.items(), "arm", "outcome")
        for buckets in (self._overhead, self._ttft, self._tpot, self._e2e):
            yield buckets.family()
        yield _alarms(self._alarms)
        yield _positions(self._lengths)
        yield from self._backends()
        yield from store_metrics(self._stores())
        if self._policy is not None:
            yield from _policy(self._policy())

    def _backends(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("breakeven_backend_up", "1 where the backend can answer", labels=["backend"])
        running = GaugeMetricFamily(
            "breakeven_backend_running", "Sequences decoding at the backend", labels=["backend"]
        )
        waiting = GaugeMetricFamily("breakeven_backend_waiting", "Sequences waiting there", labels=["backend"])
        for state in self._states():
            up.add_metric([state.name], float(state.healthy))
            running.add_metric([state.name], state.running)
            waiting.add_metric([state.name], state.waiting)
        yield from (up, running, waiting)

    def page(self) -> bytes:
        """Return the page in Prometheus's text format."""
        return generate_latest(self._registry)


def _positions(lengths: Mapping[int, int]) -> Metric:
    """Return how many rounds accepted the draft token at each position, counted from 0."""
    about = "Accepted draft tokens by their position in the draft"
    family = CounterMetricFamily("vllm:spec_decode_num_accepted_tokens_per_pos", about, labels=["position"])
    for position in range(max(lengths, default=0)):
        family.add_metric([str(position)], sum(n for accepted, n in lengths.items() if accepted > position))
    return family


def _alarms(raised: Mapping[Labels, bool]) -> Metric:
    about = "1 while an arm's zero-accept rate is above its rule's threshold, as of the latest decision on the task"
    family = GaugeMetricFamily("breakeven_zero_accept_alarm", about, labels=["task", "arm"])
    for labels, alarm in raised.items():
        family.add_metric(labels, float(alarm))
    return family


def _policy(held: Held) -> Iterator[Metric]:
    """Tell the policy in force and what was refused."""
    info = GaugeMetricFamily("breakeven_policy_info", "1 for the policy in force", labels=["hash", "origin"])
    info.add_metric([held.policy.hash, held.origin], 1)
    yield info
    for name, about, value in (
        ("breakeven_policy_since_seconds", "Unix time at which it came into force here", held.since),
        ("breakeven_policy_rejected", "1 while a newer policy is refused", float(held.rejected is not None)),
        ("breakeven_policy_rejections", "Policies refused since the start", held.rejections),
        ("breakeven_policy_reloads", "Policies that came into force since the start", held.reloads),
    ):
        yield GaugeMetricFamily(name, about, value=value)


def _counter(name: str, about: str, values: Iterable[tuple[Labels, int]], *labels: str) -> Metric:
    family = CounterMetricFamily(name, about, labels=labels)
    for key, value in values:
        family.add_metric(key, value)
    return family
