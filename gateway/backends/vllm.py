"""vLLM: one pool, one arm. Acceptance per response where the server reports it, load from its Prometheus page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.backends.base import Target
from gateway.backends.counters import VLLM, CounterShare
from gateway.backends.generic import MeasuredBackend, text
from gateway.backends.stats import decode_s, vllm_spec
from gateway.types import Decision, GenerateRequest, Spec


class VllmBackend(MeasuredBackend):
    """A vLLM server, or anything that shows vLLM's metrics."""

    kind = "vllm"
    per_request_stats = True
    running_metric = "vllm:num_requests_running"
    waiting_metric = "vllm:num_requests_waiting"
    kv_metrics = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
    preemptions = "vllm:num_preemptions_total"
    stripped = ("cache_salt",)

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self._share = CounterShare(VLLM)

    async def identify(self, samples: Mapping[str, float]) -> str:
        """Read the version; a server that speculates shows the totals of it from its start."""
        self.version = text(await self.document("/version"), "version")
        drafts = any(name.startswith("vllm:spec_decode_") for name in samples)
        self.draft_watch.speculates = drafts if VLLM.tokens in samples else None
        return ""

    def look(self, samples: Mapping[str, float]) -> None:
        """Follow the totals of speculation."""
        self._share.look(samples)

    def fields(self, request: GenerateRequest, decision: Decision) -> dict[str, Any]:
        """Return a `cache_salt` per key, so that no tenant can time another's prefix cache, and the rule's priority."""
        fields: dict[str, Any] = {"cache_salt": self.target.cache_salt(request.identity.key_id)}
        if decision.priority is not None:
            fields["priority"] = decision.priority
        return fields

    def spec(self, payload: dict[str, Any]) -> Spec | None:
        """Read acceptance of one response, or estimate it from the server's totals where it reports none; its pace."""
        spec, seconds = vllm_spec(payload) or self._share.spec(payload), decode_s(payload)
        if seconds is not None:
            spec = spec or Spec(0, 0, 0, [])
            spec.decode_s = seconds
        return spec
