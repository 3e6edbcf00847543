"""llama.cpp's server: counts of draft tokens per response, load from its slots where they are shown."""

from __future__ import annotations

from typing import Any

from gateway.backends.generic import GenericBackend
from gateway.backends.prometheus import read_metrics
from gateway.backends.stats import llamacpp_spec
from gateway.errors import BreakevenError
from gateway.types import Spec


class LlamaCppBackend(GenericBackend):
    """A `llama-server`; speculation was fixed at launch, its per-request fields are ignored by the server."""

    kind = "llamacpp"
    per_request_stats = True

    async def probe(self) -> None:
        """Read models, then load from `/metrics` where the server was started with it."""
        ours = self.in_flight
        await super().probe()
        try:
            page = (await self.client.get("/metrics")).decode("utf-8", "replace")
        except BreakevenError:
            return
        samples = read_metrics(page)
        self.running_seen = max(0, int(samples.get("llamacpp:requests_processing", 0)) - ours)
        self.waiting = int(samples.get("llamacpp:requests_deferred", 0))

    def spec(self, payload: dict[str, Any]) -> Spec | None:
        """Read `timings.draft_n` and `draft_n_accepted`."""
        return llamacpp_spec(payload)
