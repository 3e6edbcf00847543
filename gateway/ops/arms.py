"""Acceptance against break-even by task, draft length and load band. Pure; called by `collect`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from gateway.db import ActivitySums, CellActivity
from gateway.ops.costs import Costed, costed_cells
from gateway.ops.figures import gain_of
from gateway.ops.model import ArmFigures

Place = tuple[str, str, int, str, int]
"""(task, method, k, backend, load band)."""


def arm_figures(cells: Sequence[CellActivity]) -> list[ArmFigures]:
    """Return the figures of every speculative arm by load band: by task, method, length, load."""
    sums: dict[Place, ActivitySums] = defaultdict(ActivitySums)
    costs: dict[Place, Costed] = defaultdict(Costed)
    plain: dict[tuple[str, int], ActivitySums] = defaultdict(ActivitySums)
    for cell, costed in costed_cells(cells):
        key = cell.key
        if key.k == 0:
            plain[key.task, key.load].add(cell.sums)
            continue
        place = (key.task, key.method, key.k, key.backend, key.load)
        sums[place].add(cell.sums)
        if costed is not None:
            costs[place].add(costed)
    return [_figures(place, sums[place], costs[place], plain[place[0], place[4]]) for place in sorted(sums)]


def _figures(place: Place, spec: ActivitySums, costed: Costed, plain: ActivitySums) -> ArmFigures:
    task, method, k, backend, load = place
    gain, low, high = gain_of(plain, spec, costed)
    out = ArmFigures(task, f"{backend}/{method}-k{k}", k, load, spec.requests, gain=gain, gain_low=low, gain_high=high)
    if spec.rounds:
        out.a, out.z = 1 + spec.accepted / spec.rounds, spec.zero_rounds / spec.rounds
    if costed.expected_rounds_us:
        out.break_even = (costed.draft_us + costed.verify_us) / costed.expected_rounds_us
    return out
