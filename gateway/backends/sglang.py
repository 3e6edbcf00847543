"""SGLang: acceptance per response on request, load from its Prometheus page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.backends.generic import MeasuredBackend, text
from gateway.backends.stats import sglang_spec
from gateway.types import Decision, GenerateRequest, Spec


class SglangBackend(MeasuredBackend):
    """An SGLang server; one pool, one arm."""

    kind = "sglang"
    per_request_stats = True
    running_metric = "sglang:num_running_reqs"
    waiting_metric = "sglang:num_queue_reqs"
    kv_metrics = ("sglang:token_usage",)
    stripped = ("cache_salt",)

    async def identify(self, samples: Mapping[str, float]) -> str:
        """Read version, draft and seed, which is drawn anew at each start: its pages name no process start."""
        del samples
        info = await self.document("/get_server_info")
        if not isinstance(info, dict):
            info = {}
        self.version, self.draft = text(info, "version"), text(info, "speculative_draft_model_path")
        known = "speculative_algorithm" in info
        self.draft_watch.speculates = bool(info["speculative_algorithm"]) if known else None
        return str(info.get("random_seed") or "")

    def fields(self, request: GenerateRequest, decision: Decision) -> dict[str, Any]:
        """Return a `cache_salt` per key, as for vLLM, and ask for acceptance where the arm speculates."""
        fields: dict[str, Any] = {"cache_salt": self.target.cache_salt(request.identity.key_id)}
        if decision.arm.k:
            fields["return_spec_tokens_details"] = True
        return fields

    def spec(self, payload: dict[str, Any]) -> Spec | None:
        """Read acceptance in whichever form this version gives it."""
        return sglang_spec(payload)
