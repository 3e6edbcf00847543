"""Reads acceptance and cost from what engines put into their answers. Pure; called by the adapters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from engine.messages import EngineMetrics
from gateway.types import Spec


def engine_spec(payload: dict[str, Any]) -> Spec | None:
    """Read `metrics` in vLLM's shape with our extension beside it; None where absent or in no known shape."""
    metrics = payload.get("metrics")
    if not isinstance(metrics, dict):
        return None
    try:
        read = msgspec.convert(metrics, EngineMetrics, strict=False)
    except msgspec.ValidationError:
        return vllm_spec(payload)
    rounds, cost = read.speculative_decoding, read.breakeven
    if rounds is None and cost is None:
        return None
    spec = Spec(rounds=0, drafted=0, accepted=0, histogram=[])
    if rounds is not None:
        spec.rounds = rounds.num_spec_steps
        spec.drafted = rounds.num_draft_tokens
        spec.accepted = rounds.num_accepted_draft_tokens
        spec.histogram = rounds.acceptance_histogram
    if cost is not None:
        spec.undrafted = cost.undrafted
        spec.draft_s, spec.verify_s, spec.plain_s = cost.draft_s, cost.verify_s, cost.plain_s
        spec.rounds_by_k = cost.rounds_by_k
        spec.switches = cost.switches
        spec.batch_mean = cost.batch_mean
        spec.step_emitted, spec.step_drafted = cost.emitted, cost.drafted
    return spec


def vllm_spec(payload: dict[str, Any]) -> Spec | None:
    """Read `metrics.speculative_decoding` of a vLLM server run with `--per-request-spec-decode-metrics`."""
    metrics = payload.get("metrics")
    found = metrics.get("speculative_decoding") if isinstance(metrics, dict) else None
    if not isinstance(found, dict):
        return None
    histogram = [count for count in found.get("acceptance_histogram") or [] if isinstance(count, int)]
    rounds = _count(found, "num_spec_steps") or sum(histogram)
    accepted = _count(found, "num_accepted_draft_tokens")
    if not accepted:
        accepted = sum(j * count for j, count in enumerate(histogram))
    drafted = _count(found, "num_draft_tokens")
    return Spec(rounds, drafted, accepted, histogram, undrafted=_undrafted(payload, rounds + accepted))


def completion_tokens(payload: Mapping[str, Any]) -> int | None:
    """Return how many tokens an answer has, where the server counts them."""
    usage = payload.get("usage")
    tokens = usage.get("completion_tokens") if isinstance(usage, Mapping) else None
    return tokens if isinstance(tokens, int) else None


def decode_s(payload: dict[str, Any]) -> float | None:
    """Read the time from first to last token: vLLM's `generation_time_ms`, llama.cpp's `predicted_ms`."""
    for place, name in (("metrics", "generation_time_ms"), ("timings", "predicted_ms")):
        found = payload.get(place)
        value = found.get(name) if isinstance(found, dict) else None
        if isinstance(value, (int, float)) and value > 0:
            return value / 1000
    return None


def _undrafted(payload: dict[str, Any], drafted: int) -> int | None:
    """Return the steps without a draft, which vLLM does not count: tokens that neither a round nor the prompt gave.

    A lower bound: tokens accepted past the end of the text are counted by vLLM, but were not delivered.
    """
    tokens = completion_tokens(payload)
    return None if tokens is None else max(0, tokens - 1 - drafted)


def llamacpp_spec(payload: dict[str, Any]) -> Spec | None:
    """Read llama.cpp's `timings.draft_n` and `draft_n_accepted`; it counts tokens only, so rounds are not known.

    A server that drafts leaves both out where a request had no draft at all; so does one that never drafts.
    """
    timings = payload.get("timings")
    if not isinstance(timings, dict) or "draft_n" not in timings:
        return None
    return Spec(
        rounds=0,
        drafted=_count(timings, "draft_n"),
        accepted=_count(timings, "draft_n_accepted"),
        histogram=[],
        estimated=True,
    )


def sglang_spec(payload: dict[str, Any]) -> Spec | None:
    """Read SGLang's `sglext.spec_tokens_details` or the native `meta_info`, old and new field names.

    Where there is a histogram it is what counts: under an adaptive number of steps, 0.5.23 works out the number of
    proposed drafts from the configured one.
    """
    for place in (payload.get("sglext"), payload.get("meta_info"), *_choice_infos(payload)):
        if not isinstance(place, dict):
            continue
        details = place.get("spec_tokens_details")
        found = details if isinstance(details, dict) else place
        rounds = _count(found, "spec_verify_ct", "verify_ct", "num_verify_steps")
        if rounds:
            drafted = _count(
                found, "spec_num_proposed_drafts", "spec_draft_token_num", "num_draft_tokens", "draft_tokens"
            )
            accepted = _count(
                found, "spec_num_correct_drafts", "spec_accept_token_num", "num_accepted_tokens", "accepted_tokens"
            )
            histogram = _histogram(found)
            if sum(histogram) == rounds:
                accepted = sum(j * count for j, count in enumerate(histogram))
            return Spec(rounds=rounds, drafted=drafted, accepted=accepted, histogram=histogram)
    return None


def _histogram(found: dict[str, Any]) -> list[int]:
    """Return rounds by accepted tokens, under the name of this or an older version; empty where there is none."""
    for name in ("spec_correct_drafts_histogram", "spec_accept_histogram", "acceptance_histogram"):
        raw = found.get(name)
        if isinstance(raw, list):
            return [count for count in raw if isinstance(count, int)]
    return []


def _choice_infos(payload: dict[str, Any]) -> list[Any]:
    choices = payload.get("choices")
    return (
        [choice.get("meta_info") for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else []
    )


def _count(found: dict[str, Any], *names: str) -> int:
    """Return the first of these fields that is a count, else 0."""
    for name in names:
        value = found.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0:
            return int(value)
    return 0
