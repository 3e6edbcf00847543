"""vLLM: one pool, one arm. Acceptance per response where the server reports it, load from its Prometheus page."""

from __future__ import annotations

from typing import Any

from gateway.backends.base import Target
from gateway.backends.counters import VLLM, CounterShare
from gateway.backends.generic import MeasuredBackend
from gateway.backends.stats import vllm_spec
from gateway.types import Decision, GenerateRequest, Spec


class VllmBackend(MeasuredBackend):
    """A vLLM server, or anything that shows vLLM's metrics."""

    kind = "vllm"
    per_request_stats = True
    running_metric = "vllm:num_requests_running"
    waiting_metric = "vllm:num_requests_waiting"
    version_path = "/version"
    kv_metrics = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
    stripped = ("cache_salt",)

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self._totals = CounterShare(VLLM)

    def look(self, samples: dict[str, float]) -> None:
        """Follow the totals of speculation."""
        self._totals.look(samples)

    def fields(self, request: GenerateRequest, decision: Decision) -> dict[str, Any]:
        """Return a `cache_salt` per key, so that no tenant can time another's prefix cache, and the rule's priority."""
        fields: dict[str, Any] = {"cache_salt": self.target.cache_salt(request.identity.key_id)}
        if decision.priority is not None:
            fields["priority"] = decision.priority
        return fields

    def spec(self, payload: dict[str, Any]) -> Spec | None:
        """Read acceptance of one response, or estimate it from the server's totals where it reports none."""
        return vllm_spec(payload) or self._totals.spec(payload)
