"""SGLang: acceptance per response on request, load from its Prometheus page."""

from __future__ import annotations

from typing import Any

from gateway.backends.generic import MeasuredBackend
from gateway.backends.stats import sglang_spec
from gateway.types import Decision, GenerateRequest, Spec


class SglangBackend(MeasuredBackend):
    """An SGLang server; one pool, one arm."""

    kind = "sglang"
    per_request_stats = True
    running_metric = "sglang:num_running_reqs"
    waiting_metric = "sglang:num_queue_reqs"
    version_path = "/get_server_info"
    kv_metrics = ("sglang:token_usage",)

    def fields(self, request: GenerateRequest, decision: Decision) -> dict[str, Any]:
        """Ask for acceptance where the arm speculates."""
        del request
        return {"return_spec_tokens_details": True} if decision.arm.k else {}

    def spec(self, payload: dict[str, Any]) -> Spec | None:
        """Read acceptance in whichever form this version gives it."""
        return sglang_spec(payload)
