"""From sums to the design's numbers, one task at a time. Pure; called by `collect`."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from gateway.ops.model import MIN_P99, PathSums, TaskFigures


def task_figures(task: str, plain: PathSums, spec: PathSums) -> TaskFigures:
    """Return the figures of a task whose requests took these two paths."""
    steps = spec.rounds + spec.undrafted
    out = TaskFigures(
        task,
        requests=plain.requests + spec.requests,
        errors=plain.errors + spec.errors,
        tokens=plain.tokens + spec.tokens,
        requests_plain=plain.requests,
        requests_spec=spec.requests,
        rounds=spec.rounds,
        drafted_share=spec.rounds / steps if steps else None,
        gain=_gain(plain, spec),
    )
    if spec.rounds:
        out.a = 1 + spec.accepted / spec.rounds
        out.z = spec.zero_rounds / spec.rounds
    _costs(out, spec)
    _latency(out, plain, spec)
    return out


def _gain(plain: PathSums, spec: PathSums) -> float | None:
    """Return G = Σtokens · T_plain / Σtime; without costs, the ratio of the median times per token on the two paths."""
    time_s = spec.draft_s + spec.verify_s + spec.plain_s
    if time_s > 0 and spec.expected_plain_s > 0:
        return spec.expected_plain_s / time_s
    if time_s > 0:
        return None
    if plain.tpot_p50_s and spec.tpot_p50_s:
        return plain.tpot_p50_s / spec.tpot_p50_s
    return None


def _costs(out: TaskFigures, spec: PathSums) -> None:
    """Fill in α, β and the break-even length, or only the latter where a backend reports no costs."""
    if spec.expected_round_plain_s > 0:
        out.alpha = spec.draft_s / spec.expected_round_plain_s
        out.beta = spec.verify_s / spec.expected_round_plain_s - 1
        out.break_even = 1 + out.alpha + out.beta
    elif out.a is not None and out.gain and not spec.draft_s + spec.verify_s:
        out.break_even = out.a / out.gain


def _latency(out: TaskFigures, plain: PathSums, spec: PathSums) -> None:
    """Fill in the latencies of both paths; a p99 needs 299 requests."""
    out.tpot_p50_plain_ms, out.tpot_p50_spec_ms = _ms(plain.tpot_p50_s), _ms(spec.tpot_p50_s)
    out.tpot_max_plain_ms, out.tpot_max_spec_ms = _ms(plain.tpot_max_s), _ms(spec.tpot_max_s)
    out.ttft_p50_plain_ms, out.ttft_p50_spec_ms = _ms(plain.ttft_p50_s), _ms(spec.ttft_p50_s)
    if plain.tpot_requests >= MIN_P99:
        out.tpot_p99_plain_ms = _ms(plain.tpot_p99_s)
    if spec.tpot_requests >= MIN_P99:
        out.tpot_p99_spec_ms = _ms(spec.tpot_p99_s)


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1000 * seconds


ADDED = tuple(
    field.name
    for field in msgspec.structs.fields(PathSums)
    if not field.name.startswith(("tpot_p", "tpot_max", "ttft_"))
)
"""Fields of PathSums that add up; quantiles do not (merge their histograms instead)."""


def add_sums(parts: Iterable[PathSums]) -> PathSums:
    """Return the sum of the parts, without latencies."""
    total = PathSums()
    for part in parts:
        for name in ADDED:
            setattr(total, name, getattr(total, name) + getattr(part, name))
    return total
