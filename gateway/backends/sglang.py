"""SGLang: acceptance per response on request, load from its Prometheus page."""

from __future__ import annotations

from typing import Any

from gateway.backends.generic import GenericBackend
from gateway.backends.prometheus import read_metrics
from gateway.backends.stats import sglang_spec
from gateway.errors import BreakevenError
from gateway.types import Decision, GenerateRequest, Spec


class SglangBackend(GenericBackend):
    """An SGLang server; one pool, one arm."""

    kind = "sglang"
    per_request_stats = True

    async def probe(self) -> None:
        """Read models, then load from `/metrics` where the server was started with `--enable-metrics`."""
        ours = self.in_flight
        await super().probe()
        try:
            page = (await self.client.get("/metrics")).decode("utf-8", "replace")
        except BreakevenError:
            return
        samples = read_metrics(page)
        self.running_seen = max(0, int(samples.get("sglang:num_running_reqs", 0)) - ours)
        self.waiting = int(samples.get("sglang:num_queue_reqs", 0))
        started = samples.get("process_start_time_seconds")
        if started is not None:
            self.epoch = f"{started:.0f}"

    def fields(self, request: GenerateRequest, decision: Decision) -> dict[str, Any]:
        """Ask for acceptance where the arm speculates."""
        del request
        return {"return_spec_tokens_details": True} if decision.arm.k else {}

    def spec(self, payload: dict[str, Any]) -> Spec | None:
        """Read acceptance in whichever form this version gives it."""
        return sglang_spec(payload)
