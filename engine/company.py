"""How long drafts may be while plain requests decode beside them. Pure; called by the core.

A step lasts as long as all its tokens take, so drafts of some requests slow the others down. Where the measured costs
say that steps would take more than `LIMIT` plain steps on the average, drafts are shortened for a step; alone among
their like, requests that speculate keep the lengths that they ask for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from engine.messages import CostCell

LIMIT = 1.09
"""Plain steps that a step with plain requests in it may take: they keep nine tenths of their speed, with a margin."""
MOST_CREDIT = 0.3
"""Plain steps that earlier steps may leave to a later one: a step that drafts is never long."""


def longest_fitting(
    cells: Iterable[CostCell], methods: Collection[str], share: float, wished: int, credit: float = 0.0
) -> tuple[int, float]:
    """Return the longest draft length, at most `wished`, at which a step keeps to `LIMIT`, and the credit that is left.

    Where nothing is known that is `wished`.

    Args:
        cells: measured at this load and context, of any method.
        methods: those that draft in this step, one after the other.
        share: part of the step's requests that draft; the others verify one token each.
        wished: longest draft asked for.
        credit: what earlier steps stayed below `LIMIT`, in plain steps.
    """
    cells = list(cells)
    verify = _line({cell.k: cell.verify_s / cell.plain_s - 1.0 for cell in cells})
    drafts = [_line({cell.k: cell.draft_s / cell.plain_s for cell in cells if cell.method == name}) for name in methods]
    if not verify:
        return wished, credit
    for k in range(wished, 0, -1):
        left = LIMIT + credit - 1.0 - _at(verify, k * share) - sum(_at(line, k) for line in drafts)
        if left >= 0:
            return k, min(left, MOST_CREDIT)
    return 0, min(LIMIT + credit - 1.0, MOST_CREDIT)


def _line(points: dict[int, float]) -> list[tuple[float, float]]:
    """Cost over draft length, from nothing at 0; a longer draft never costs less than a shorter one."""
    line = [(0.0, 0.0)]
    for k, cost in sorted(points.items()):
        line.append((float(k), max(cost, line[-1][1])))
    return line if len(line) > 1 else []


def _at(line: Sequence[tuple[float, float]], k: float) -> float:
    """The cost at `k`, straight between measured lengths and on beyond the last."""
    if not line:
        return 0.0
    at = next((at for at, (right, _) in enumerate(line) if k <= right), len(line) - 1)
    (left, low), (right, high) = line[max(0, at - 1)], line[max(1, at)]
    return low + (high - low) * (k - left) / (right - left)
