"""vLLM: one pool, one arm. Acceptance per response where the server reports it, load from its Prometheus page."""

from __future__ import annotations

from typing import Any

from gateway.backends.base import Target
from gateway.backends.counters import VLLM, CounterShare
from gateway.backends.generic import GenericBackend
from gateway.backends.prometheus import read_metrics
from gateway.backends.stats import vllm_spec
from gateway.errors import BreakevenError
from gateway.types import Decision, GenerateRequest, Spec


class VllmBackend(GenericBackend):
    """A vLLM server, or anything that shows vLLM's metrics."""

    kind = "vllm"
    per_request_stats = True
    stripped = ("cache_salt",)

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self._totals = CounterShare(VLLM)

    async def probe(self) -> None:
        """Read models, then load and process start from `/metrics`, which not every build has."""
        ours = self.in_flight
        await super().probe()
        try:
            page = (await self.client.get("/metrics")).decode("utf-8", "replace")
        except BreakevenError:
            return
        samples = read_metrics(page)
        self._totals.look(samples)
        self.running_seen = max(0, int(samples.get("vllm:num_requests_running", 0)) - ours)
        self.waiting = int(samples.get("vllm:num_requests_waiting", 0))
        started = samples.get("process_start_time_seconds")
        if started is not None:
            self.epoch = f"{started:.0f}"

    def fields(self, request: GenerateRequest, decision: Decision) -> dict[str, Any]:
        """Return a `cache_salt` per key, so that no tenant can time another's prefix cache, and the rule's priority."""
        fields: dict[str, Any] = {"cache_salt": self.target.cache_salt(request.identity.key_id)}
        if decision.priority is not None:
            fields["priority"] = decision.priority
        return fields

    def spec(self, payload: dict[str, Any]) -> Spec | None:
        """Read acceptance of one response, or estimate it from the server's totals where it reports none."""
        return vllm_spec(payload) or self._totals.spec(payload)
