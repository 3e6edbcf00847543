"""What a round costs in plain steps, by load and context, from the tables that engines measure. Pure.

Ratios are taken within one measured cell (plain and verify steps are interleaved there) and interpolated between cells,
so that slow drift of the machine cancels out. Verifying k + 1 tokens cannot be cheaper than a plain step: a β below 0
is noise and taken as 0. One far below tells of plain steps timed while the machine was busier than during the rounds:
such a cell counts as not yet measured, unless a draft length has no other.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Protocol

from engine.messages import CostCell, CostTable

IMPLAUSIBLE_BETA = -0.15
"""Below this, plain steps and rounds were not timed under the same conditions."""


class Costs(Protocol):
    """Costs of one backend. Contexts are tokens, loads running sequences."""

    def plain_s(self, load: float, context: float) -> float | None:
        """Return T_plain in seconds, None where unknown."""
        ...

    def ratios(self, method: str, k: float, load: float, context: float) -> tuple[float, float] | None:
        """Return (α, β) of a round with `k` draft tokens, None where unknown."""
        ...


class TableCosts:
    """`Costs` from a `CostTable`: linear between measured points, constant beyond the outermost."""

    def __init__(self, table: CostTable) -> None:
        self.table = table
        plain: dict[tuple[int, int], list[float]] = defaultdict(list)
        rounds: dict[str, dict[int, dict[tuple[int, int], tuple[float, float]]]] = defaultdict(
            lambda: defaultdict(dict)
        )
        for cell in table.cells:
            if cell.plain_s > 0:
                plain[cell.batch, cell.context].append(cell.plain_s)
                if cell.k > 0:
                    rounds[cell.method][cell.k][cell.batch, cell.context] = _ratios(cell)
        rounds_by_method = {m: {k: _plausible(cells) for k, cells in by_k.items()} for m, by_k in rounds.items()}
        self._plain = _Grid({where: (sorted(values)[len(values) // 2],) for where, values in plain.items()})
        self._rounds = {
            method: [(k, _Grid(points)) for k, points in sorted(by_k.items())]
            for method, by_k in rounds_by_method.items()
        }
        self._cache: dict[tuple[str, float, float, float], tuple[float, float] | None] = {}

    def plain_s(self, load: float, context: float) -> float | None:
        """Return T_plain in seconds, None where unknown."""
        found = self._plain.at(load, context)
        return found[0] if found else None

    def ratios(self, method: str, k: float, load: float, context: float) -> tuple[float, float] | None:
        """Return (α, β) of a round with `k` draft tokens (a mean may lie between measured lengths)."""
        where = (method, round(16 * k) / 16, load, context)
        if where not in self._cache:
            if len(self._cache) > 10_000:
                self._cache.clear()
            self._cache[where] = self._look_up(*where)
        return self._cache[where]

    def _look_up(self, method: str, k: float, load: float, context: float) -> tuple[float, float] | None:
        lengths = self._rounds.get(method)
        if not lengths or k <= 0:
            return None
        above = next((i for i, (length, _) in enumerate(lengths) if length >= k), len(lengths) - 1)
        high, grid = lengths[above]
        top = grid.at(load, context)
        if top is None or high == k:
            return _pair(top)
        if above == 0:
            low, bottom = 0, (top[0], 0.0)  # drafting less saves verification, hardly the draft's fixed part
        else:
            low, found = lengths[above - 1][0], lengths[above - 1][1].at(load, context)
            bottom = (found[0], found[1]) if found else (top[0], top[1])
        share = min(2.0, (k - low) / (high - low))
        return max(0.0, bottom[0] + (top[0] - bottom[0]) * share), max(0.0, bottom[1] + (top[1] - bottom[1]) * share)


class _Grid:
    """Tuples on a ragged (batch, context) grid."""

    def __init__(self, points: Mapping[tuple[int, int], tuple[float, ...]]) -> None:
        rows: dict[int, list[tuple[float, tuple[float, ...]]]] = defaultdict(list)
        for (batch, context), value in sorted(points.items()):
            rows[batch].append((context, value))
        self._rows = sorted(rows.items())

    def at(self, load: float, context: float) -> tuple[float, ...] | None:
        """Return the interpolated tuple, None where the grid is empty."""
        if not self._rows:
            return None
        return _between([(batch, _between(row, context)) for batch, row in self._around(load)], load)

    def _around(self, load: float) -> Sequence[tuple[int, list[tuple[float, tuple[float, ...]]]]]:
        i = bisect_right(self._rows, load, key=lambda row: row[0])
        return self._rows[max(0, i - 1) : i + 1] or self._rows[-1:]


def _between(points: Sequence[tuple[float, tuple[float, ...]]], x: float) -> tuple[float, ...]:
    if x <= points[0][0]:
        return points[0][1]
    if x >= points[-1][0]:
        return points[-1][1]
    i = bisect_right(points, x, key=lambda point: point[0])
    (x0, low), (x1, high) = points[i - 1], points[i]
    share = (x - x0) / (x1 - x0)
    return tuple(a + (b - a) * share for a, b in zip(low, high, strict=True))


def _ratios(cell: CostCell) -> tuple[float, float]:
    return cell.draft_s / cell.plain_s, cell.verify_s / cell.plain_s - 1.0


def _plausible(cells: Mapping[tuple[int, int], tuple[float, float]]) -> dict[tuple[int, int], tuple[float, float]]:
    """Return the cells that can be true, with no β below 0."""
    kept = {where: pair for where, pair in cells.items() if pair[1] >= IMPLAUSIBLE_BETA} or cells
    return {where: (max(0.0, alpha), max(0.0, beta)) for where, (alpha, beta) in kept.items()}


def _pair(found: tuple[float, ...] | None) -> tuple[float, float] | None:
    return (found[0], found[1]) if found else None
