"""llama.cpp's server: counts of draft tokens per response, load from its slots where they are shown."""

from __future__ import annotations

from typing import Any

from gateway.backends.generic import MeasuredBackend
from gateway.backends.stats import llamacpp_spec
from gateway.types import Spec


class LlamaCppBackend(MeasuredBackend):
    """A `llama-server`; speculation was fixed at launch, its per-request fields are ignored by the server."""

    kind = "llamacpp"
    per_request_stats = True
    running_metric = "llamacpp:requests_processing"
    waiting_metric = "llamacpp:requests_deferred"

    def spec(self, payload: dict[str, Any]) -> Spec | None:
        """Read `timings.draft_n` and `draft_n_accepted`."""
        return llamacpp_spec(payload)
