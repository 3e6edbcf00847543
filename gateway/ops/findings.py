"""What the figures mean: draft work wasted, tails on both paths, full misses and spikes. Pure; called by `study`."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

from gateway.db import ActivitySums, CellActivity, Tail
from gateway.histogram import LogHistogram
from gateway.ops.costs import nearest, plain_steps
from gateway.ops.model import MIN_P99
from gateway.ops.study_model import SpikePoint, Spikes, TailRow, Waste

_POINTS = 8
"""Points from which a rank correlation gets an interval."""


def waste(cells: Iterable[CellActivity]) -> list[Waste]:
    """Return the refused draft work of each task, most wasteful first.

    Of the draft phase the refused share of its tokens; of the verify phase what it took beyond one plain step, times
    the same share.
    """
    cells = [cell for cell in cells if cell.key.k > 0 and cell.sums.drafted] + [c for c in cells if c.key.k == 0]
    known = plain_steps(cells)
    found: dict[str, Waste] = {}
    totals: dict[str, float] = defaultdict(float)
    blind: set[str] = set()
    for cell in cells:
        sums, task = cell.sums, cell.key.task
        steps_us = sums.draft_us + sums.verify_us + sums.plain_us
        if cell.key.k == 0:
            continue
        row = found.setdefault(task, Waste(task, 0, 0, 0.0, 0.0, None))
        row.drafted += sums.drafted
        row.rejected += sums.drafted - sums.accepted
        refused = 1 - sums.accepted / sums.drafted
        plain_us = nearest(known, cell.key)
        if not steps_us or plain_us is None:
            blind.add(task)
            continue
        wasted = refused * (sums.draft_us + max(0.0, sums.verify_us - sums.rounds * plain_us)) / 1e6
        row.wasted_s += wasted
        totals[task] += steps_us / 1e6
        if sums.accelerator_us and row.wasted_accelerator_s is not None:
            row.wasted_accelerator_s += wasted * min(1.0, sums.accelerator_us / steps_us)
        else:
            row.wasted_accelerator_s = None
    for task, row in found.items():
        row.share = row.wasted_s / totals[task] if totals[task] else None
        if task in blind:
            row.wasted_accelerator_s = None
    return sorted(found.values(), key=lambda row: (-row.wasted_s, row.task))


def tails(parts: Iterable[Tail]) -> list[TailRow]:
    """Return p99 of ITL and TPOT of each task on both paths, over all its loads."""
    merged: dict[tuple[str, str, str], LogHistogram] = defaultdict(LogHistogram)
    for part in parts:
        merged[part.task, part.metric, part.arm.path].merge(part.histogram)
    rows = []
    for task, metric in sorted({key[:2] for key in merged}):
        plain, spec = merged[task, metric, "plain"], merged[task, metric, "speculative"]
        (p, p_low, p_high), (s, s_low, s_high) = _p99(plain), _p99(spec)
        worse = None
        if None not in (p_low, p_high, s_low, s_high):
            worse = True if s_low > p_high else False if s_high < p_low else None  # type: ignore[operator]  # none is None
        rows.append(TailRow(task, metric, plain.count, spec.count, p, p_low, p_high, s, s_low, s_high, worse))
    return rows


def _p99(histogram: LogHistogram) -> tuple[float | None, float | None, float | None]:
    """Return p99 and its two-sided 95 % bounds, milliseconds; None below 299 values."""
    if histogram.count < MIN_P99:
        return None, None, None
    found = histogram.quantile(0.99), histogram.lower_bound(0.99, 0.975), histogram.upper_bound(0.99, 0.975)
    first, low, high = (None if value is None else 1000 * value for value in found)
    return first, low, high


def spikes(cells: Iterable[CellActivity], parts: Sequence[Tail]) -> Spikes:
    """Compare z with the tail of each task, arm and load that has a plain tail to compare with."""
    points = sorted(_points(cells, parts), key=lambda point: -point.z)
    rho = _spearman([p.z for p in points], [p.ratio for p in points])
    if rho is None or len(points) < _POINTS:
        text = f"{len(points)} arms with 299 requests beside plain ones at the same load; {_POINTS} are needed to say."
        return Spikes(points, rho, None, None, "no_data", text)
    # Fisher's z with Bonett and Wright's variance for ranks (Psychometrika 65, 2000).
    reach = 1.959964 * math.sqrt((1 + rho * rho / 2) / (len(points) - 3))
    middle = math.atanh(max(-0.9999, min(0.9999, rho)))
    low, high = math.tanh(middle - reach), math.tanh(middle + reach)
    shown = f"rank correlation {rho:+.2f} [{low:+.2f} to {high:+.2f}] over {len(points)} arms and loads"
    if low > 0:
        return Spikes(points, rho, low, high, "yes", f"Arms that miss more have the longer tail: {shown}.")
    if high < 0:
        text = f"Arms that miss more have no longer tail, rather a shorter one: {shown}."
        return Spikes(points, rho, low, high, "no", text)
    text = f"No connection can be told between full misses and the tail: {shown}."
    return Spikes(points, rho, low, high, "unclear", text)


def _points(cells: Iterable[CellActivity], parts: Sequence[Tail]) -> list[SpikePoint]:
    plain: dict[tuple[str, int], LogHistogram] = defaultdict(LogHistogram)
    spec: dict[tuple[str, str, int], LogHistogram] = defaultdict(LogHistogram)
    for part in parts:
        if part.metric == "tpot" and part.arm.k == 0:
            plain[part.task, part.load].merge(part.histogram)
        elif part.metric == "tpot":
            spec[part.task, str(part.arm), part.load].merge(part.histogram)
    sums: dict[tuple[str, str, int], ActivitySums] = defaultdict(ActivitySums)
    for cell in cells:
        if cell.key.k:
            arm = f"{cell.key.backend}/{cell.key.method}-k{cell.key.k}"
            sums[cell.key.task, arm, cell.key.load].add(cell.sums)
    found = []
    for key, histogram in spec.items():
        ours, theirs = histogram, plain.get((key[0], key[2]))
        if theirs is None or min(ours.count, theirs.count) < MIN_P99 or not sums[key].rounds:
            continue
        ratio = (ours.quantile(0.99) or 0.0) / (theirs.quantile(0.99) or math.inf)
        found.append(SpikePoint(*key, sums[key].zero_rounds / sums[key].rounds, ratio, ours.count))
    return found


def _spearman(left: Sequence[float], right: Sequence[float]) -> float | None:
    """Return the rank correlation, ties at their mean rank; None below three points or without any spread."""
    if len(left) < 3:
        return None
    a, b = _ranks(left), _ranks(right)
    middle = (len(a) + 1) / 2
    over = sum((x - middle) * (y - middle) for x, y in zip(a, b, strict=True))
    under = math.sqrt(sum((x - middle) ** 2 for x in a) * sum((y - middle) ** 2 for y in b))
    return over / under if under else None


def _ranks(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    first = {value: at for at, value in reversed(list(enumerate(ordered, 1)))}
    last = {value: at for at, value in enumerate(ordered, 1)}
    return [(first[value] + last[value]) / 2 for value in values]
