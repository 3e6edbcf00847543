"""llama.cpp's server: counts of draft tokens per response, rounds by its totals, load from its Prometheus page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.backends.base import Target
from gateway.backends.counters import RoundShare
from gateway.backends.generic import MeasuredBackend, text
from gateway.backends.stats import decode_s, llamacpp_spec
from gateway.types import Spec


class LlamaCppBackend(MeasuredBackend):
    """A `llama-server`; speculation was fixed at launch, its per-request fields are ignored by the server."""

    kind = "llamacpp"
    per_request_stats = True
    running_metric = "llamacpp:requests_processing"
    waiting_metric = "llamacpp:requests_deferred"
    kv_metrics = ("llamacpp:kv_cache_usage_ratio",)
    start_header = "process-start-time-unix"
    """By the machine's own clock, not Unix time; but no two processes have the same."""

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self._rounds = RoundShare()

    async def identify(self, samples: Mapping[str, float]) -> str:
        """Read the build and whether the slots speculate; the marker for media is drawn anew at each start."""
        del samples
        props, slots = await self.document("/props"), await self.document("/slots")
        self.version = text(props, "build_info")
        modalities = props.get("modalities") if isinstance(props, dict) else None
        self.images = modalities.get("vision") is True if isinstance(modalities, dict) else None
        told = [slot["speculative"] for slot in slots or () if isinstance(slot, dict) and "speculative" in slot]
        self.draft_watch.speculates = any(told) if told else None
        return text(props, "media_marker")

    def look(self, samples: Mapping[str, float]) -> None:
        """Follow how many tokens a draft has on average (shown where the server was started with `--metrics`)."""
        self._rounds.look(samples)

    def spec(self, payload: dict[str, Any]) -> Spec | None:
        """Read `timings.draft_n` and `draft_n_accepted`; rounds are worked out, so the whole is marked as estimated."""
        spec, timings = llamacpp_spec(payload), payload.get("timings")
        tokens = timings.get("predicted_n") if isinstance(timings, dict) else None
        if not isinstance(tokens, int):
            return spec
        if spec is None:  # it never drafts, or found nothing to propose here
            spec = Spec(0, 0, 0, [], estimated=bool(self.draft_watch.speculates))
        if spec.estimated:
            longest = max((arm.k for arm in self.arms), default=0)
            spec = self._rounds.rounds(spec, tokens, longest)
        spec.decode_s = decode_s(payload)
        return spec
