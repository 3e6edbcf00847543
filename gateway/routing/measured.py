"""Relative time from measured time per token, for pools that report no costs. Pure; called by `make_node`.

Plain time per token depends on load and context, not on the task: it is pooled over tasks. An arm's relative time is
its own time per token over plain's; only the sum α + β = a·r − 1 can be told from it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gateway.routing.book import Book, Kind, Measured
from gateway.routing.estimates import Estimate, Evidence
from gateway.routing.tuning import Tuning
from gateway.types import CellKey

BAND_REQUESTS = 20.0
"""What all contexts together weigh in the plain time of one context band, in requests."""


@dataclass(slots=True)
class Pace:
    """Seconds per token with their standard error."""

    seconds: float
    se: float
    requests: float
    effective: float
    """How many requests of equal length would say as much."""


def pace(cells: Iterable[Measured]) -> Pace | None:
    """Return Σtime/Σtokens of some cells with its error by request, None where there is nothing."""
    parts = [cell for cell in cells if cell.tokens > 0]
    tokens = sum(cell.tokens for cell in parts)
    n = sum(cell.requests for cell in parts)
    if tokens <= 0 or n <= 0:
        return None
    mean = sum(cell.seconds for cell in parts) / tokens
    residual = sum(c.squares - 2 * mean * c.cross + mean * mean * c.tokens_squared for c in parts)
    squares = sum(cell.tokens_squared for cell in parts)
    effective = tokens * tokens / squares if squares > 0 else n
    return Pace(mean, math.sqrt(max(0.0, residual)) / tokens, n, effective)


def plain_pace(book: Book, backend: str, band: str, load: int) -> Pace | None:
    """Return plain's pace in a context band, pooled over tasks: of the backend itself, else of the other pools."""
    where = ("plain", backend, band, load)
    if where not in book.memo:
        book.memo[where] = _plain_pace(book, backend, band, load)
    return book.memo[where]  # type: ignore[return-value]  # each entry of the memo has its own type


def _plain_pace(book: Book, backend: str, band: str, load: int) -> Pace | None:
    plain = [pair for (_, _, k), pairs in book.measured_by_arm().items() if k == 0 for pair in pairs]
    own = [(key, cell) for key, cell in plain if key.backend == backend and key.load == load]
    found = own or _busiest_load([(key, cell) for key, cell in plain if key.backend != backend]) or _busiest_load(plain)
    wide = pace(cell for _, cell in found)
    narrow = pace(cell for key, cell in found if key.context == band)
    if wide is None or narrow is None:
        return wide
    weight = narrow.requests / (narrow.requests + BAND_REQUESTS)
    seconds = weight * narrow.seconds + (1 - weight) * wide.seconds
    return Pace(seconds, math.hypot(weight * narrow.se, (1 - weight) * wide.se), wide.requests, wide.effective)


def fill(evidence: Evidence, book: Book, kind: Kind, load: int, tuning: Tuning) -> None:
    """Fill in relative times of a backend without costs from measured ones."""
    reference = plain_pace(book, kind[0], kind[3], load)
    if reference is None:
        evidence.arms[0].se = tuning.prior_sd
        return
    evidence.plain_s = reference.seconds
    plain = evidence.arms[0]
    plain.requests, plain.se = reference.requests, _error(reference, reference, tuning)
    plain.measured = True
    for arm in evidence.arms[1:]:
        _fill_arm(arm, book, kind, load, reference=reference, tuning=tuning)
    arms = evidence.arms
    evidence.gap = [[one.r - other.r for other in arms] for one in arms]
    evidence.spread = [[math.hypot(one.se, other.se) for other in arms] for one in arms]


def _fill_arm(arm: Estimate, book: Book, kind: Kind, load: int, *, reference: Pace, tuning: Tuning) -> None:
    mine: list[tuple[CellKey, Measured]] = []
    others: list[tuple[CellKey, Measured]] = []
    for key, cell in book.measured_by_arm().get((kind[0], *arm.key), ()):
        (mine if key.task == kind[1] else others).append((key, cell))
    own = pace(_near(mine, load))
    where = ("others", kind[0], *arm.key, kind[1], load)
    if where not in book.memo:
        book.memo[where] = pace(_near(others, load))
    wider: Pace | None = book.memo[where]  # type: ignore[assignment]
    arm.measured = True
    prior_r, prior_sd = 1.0, 2 * tuning.prior_sd
    if wider is not None:
        prior_r = wider.seconds / reference.seconds
        prior_sd = math.hypot(tuning.task_sd * prior_r, _error(wider, reference, tuning))
    if own is None:
        arm.requests, arm.r, arm.se = 0.0, prior_r, prior_sd
        return
    r, se = own.seconds / reference.seconds, _error(own, reference, tuning)
    mine_w, prior_w = se**-2, prior_sd**-2
    arm.requests = own.requests
    arm.r, arm.se = (r * mine_w + prior_r * prior_w) / (mine_w + prior_w), (mine_w + prior_w) ** -0.5
    if arm.a is not None:
        arm.measured_sum = arm.a * r - 1.0


def _error(one: Pace, reference: Pace, tuning: Tuning) -> float:
    """Return the standard error of a pace over the reference, shrunk towards what is assumed beforehand."""
    weight, prior = tuning.prior_sd_requests, tuning.prior_sd / 2
    per_request = (one.effective**2 * (one.se / reference.seconds) ** 2 + weight * prior**2) / (one.effective + weight)
    return math.sqrt(per_request / max(1e-9, one.effective))


def _near(cells: Sequence[tuple[CellKey, Measured]], load: int) -> list[Measured]:
    """Return the cells at this load; without any, those of the load nearest to it."""
    loads = {key.load for key, _ in cells}
    if not loads:
        return []
    nearest = min(loads, key=lambda other: abs(math.log(other / load)))
    return [cell for key, cell in cells if key.load == nearest]


def _busiest_load(cells: Sequence[tuple[CellKey, Measured]]) -> list[tuple[CellKey, Measured]]:
    by_load: dict[int, float] = {}
    for key, cell in cells:
        by_load[key.load] = by_load.get(key.load, 0.0) + cell.requests
    if not by_load:
        return []
    busiest = max(by_load, key=lambda load: by_load[load])
    return [(key, cell) for key, cell in cells if key.load == busiest]
