"""From sums to the design's numbers, one task at a time. Pure; called by `collect`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

from gateway.db import ActivitySums, TaskActivity
from gateway.histogram import LogHistogram
from gateway.ops.costs import Costed
from gateway.ops.model import MIN_P99, ApplicationFigures, PathFigures, PathSums, TaskFigures

_MIN_INTERVAL = 5
"""Requests from which the gain's interval is shown."""


def task_figures(task: str, plain: PathSums, spec: PathSums) -> TaskFigures:
    """Return the figures of a task whose requests took these two paths."""
    p, s = plain.sums, spec.sums
    steps = s.rounds + s.undrafted
    gain, low, high = gain_of(p, s, spec.costed)
    out = TaskFigures(
        task,
        requests=p.requests + s.requests,
        errors=p.errors + s.errors,
        tokens=p.completion_tokens + s.completion_tokens,
        requests_plain=p.requests,
        requests_spec=s.requests,
        rounds=s.rounds,
        drafted_share=s.rounds / steps if steps else None,
        gain=gain,
        gain_low=low,
        gain_high=high,
    )
    if s.rounds:
        out.a = 1 + s.accepted / s.rounds
        out.z = s.zero_rounds / s.rounds
    _costs(out, spec.costed)
    out.tpot_p50_plain_ms, out.tpot_p99_plain_ms, out.tpot_max_plain_ms = _quantiles(plain.tpot)
    out.tpot_p50_spec_ms, out.tpot_p99_spec_ms, out.tpot_max_spec_ms = _quantiles(spec.tpot)
    out.ttft_p50_plain_ms, out.ttft_p50_spec_ms = _quantiles(plain.ttft)[0], _quantiles(spec.ttft)[0]
    return out


def gain_of(plain: ActivitySums, spec: ActivitySums, costed: Costed) -> tuple[float | None, float | None, float | None]:
    """Return the gain and its 95 % interval.

    G = Σtokens · T_plain / Σtime at the same load where the backend reports its steps' times; else the ratio of the
    time per token that clients saw on the two paths. The interval is that of a ratio estimator by the delta method on
    the log scale, with the request as the sampling unit.
    """
    if costed.time_us:
        gain, error = costed.expected_us / costed.time_us, relative_error(spec)
    elif spec.decode_us and plain.decode_us:
        gain = (plain.decode_us / plain.decode_tokens) / (spec.decode_us / spec.decode_tokens)
        own, other = relative_error(spec), relative_error(plain)
        error = None if own is None or other is None else math.hypot(own, other)
    else:
        return None, None, None
    if error is None:
        return gain, None, None
    reach = student_t(spec.measured - 1) * error
    return gain, gain * math.exp(-reach), gain * math.exp(reach)


def student_t(freedom: float) -> float:
    """Return the 97.5 % quantile of Student's t (Cornish-Fisher; within 2 % from 4 degrees of freedom on)."""
    z = 1.959964
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def relative_error(sums: ActivitySums) -> float | None:
    """Return the relative standard error of Σtime/Σtokens, None below 5 measured requests.

    Times of the second moments are in units of 100 µs.
    """
    n, tokens, units = sums.measured, sums.decode_tokens, sums.decode_us / 100
    if n < _MIN_INTERVAL or not tokens or not units:
        return None
    ratio = units / tokens
    residual = sums.time_time - 2 * ratio * sums.tokens_time + ratio * ratio * sums.tokens_tokens
    return math.sqrt(max(0.0, residual) * n / (n - 1)) / units


def _costs(out: TaskFigures, costed: Costed) -> None:
    """Fill in α, β and the break-even length, or only the latter where a backend reports no costs."""
    if costed.expected_rounds_us:
        out.alpha = costed.draft_us / costed.expected_rounds_us
        out.beta = costed.verify_us / costed.expected_rounds_us - 1
        out.break_even = 1 + out.alpha + out.beta
    elif out.a is not None and out.gain and not costed.time_us:
        out.break_even = out.a / out.gain


def _quantiles(histogram: LogHistogram) -> tuple[float | None, float | None, float | None]:
    """Return p50, p99 (None below 299 requests) and maximum, milliseconds."""
    p99 = histogram.quantile(0.99) if histogram.count >= MIN_P99 else None
    return _ms(histogram.quantile(0.5)), _ms(p99), _ms(histogram.maximum())


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1000 * seconds


def path_figures(path: str, of: PathSums) -> PathFigures:
    """Return one path's figures over all tasks."""
    ttft, tpot, itl = _quantiles(of.ttft), _quantiles(of.tpot), _quantiles(of.itl)
    sums = of.sums
    return PathFigures(
        path,
        requests=sums.requests,
        errors=sums.errors,
        tokens=sums.completion_tokens,
        ttft_p50_ms=ttft[0],
        ttft_p99_ms=ttft[1],
        tpot_p50_ms=tpot[0],
        tpot_p99_ms=tpot[1],
        itl_p50_ms=itl[0],
        itl_p99_ms=itl[1],
        overhead_ms=sums.overhead_us / sums.requests / 1000 if sums.requests else None,
    )


def application_figures(activity: Iterable[TaskActivity], names: Mapping[str, str]) -> list[ApplicationFigures]:
    """Return what each API key used, busiest first."""
    found: dict[str, ApplicationFigures] = {}
    speculative: Counter[str] = Counter()
    for part in activity:
        row = found.setdefault(part.key_id, ApplicationFigures(part.key_id, names.get(part.key_id, part.key_id)))
        row.requests += part.sums.requests
        row.errors += part.sums.errors
        row.prompt_tokens += part.sums.prompt_tokens
        row.completion_tokens += part.sums.completion_tokens
        speculative[part.key_id] += part.sums.requests if part.arm.path == "speculative" else 0
    for key_id, row in found.items():
        row.speculative_share = speculative[key_id] / row.requests if row.requests else None
    return sorted(found.values(), key=lambda row: (-row.requests, row.key_id))


def add_paths(parts: Iterable[PathSums]) -> PathSums:
    """Return the sum of the parts; histograms merge exactly."""
    total = PathSums()
    for part in parts:
        total.sums.add(part.sums)
        total.tpot.merge(part.tpot)
        total.ttft.merge(part.ttft)
        total.itl.merge(part.itl)
        total.costed.add(part.costed)
    return total
