"""What plain decoding would have taken for the same output at the same load. Pure; for `collect` and the reports.

T_plain is measured, not modelled: the mean undrafted step of the requests that took a plain arm of the same backend and
epoch, in the same load and context band. Where none ran there, the nearest context band of that load stands in, then
the T_plain that each request's decision expected from the backend's cost table.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from gateway.bands import CONTEXT_BANDS
from gateway.db import ActivitySums, CellActivity
from gateway.types import CellKey

MIN_STEPS = 32
"""Plain steps behind a T_plain at least."""
Place = tuple[str, str, int, str]
"""(backend, epoch, load band, context band)."""


class Costed(msgspec.Struct):
    """Σ over the speculative requests whose T_plain is known. Microseconds."""

    draft_us: int = 0
    verify_us: int = 0
    plain_us: int = 0
    rounds: int = 0
    expected_us: float = 0.0
    """Σ tokens of decode steps × T_plain."""
    expected_rounds_us: float = 0.0
    """Σ rounds × T_plain."""

    @property
    def time_us(self) -> int:
        """What the decode steps took."""
        return self.draft_us + self.verify_us + self.plain_us

    def add(self, other: Costed) -> None:
        """Add another group's sums."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


def plain_steps(cells: Iterable[CellActivity]) -> dict[Place, float]:
    """Return T_plain, microseconds, wherever enough plain steps ran."""
    time_us: dict[Place, int] = defaultdict(int)
    steps: dict[Place, int] = defaultdict(int)
    for cell in cells:
        if cell.key.k == 0:
            time_us[_place(cell.key)] += cell.sums.plain_us
            steps[_place(cell.key)] += cell.sums.undrafted
    return {place: time_us[place] / steps[place] for place in time_us if steps[place] >= MIN_STEPS and time_us[place]}


def costed_by_task(cells: Iterable[CellActivity]) -> dict[str, Costed]:
    """Return the sums of each task's speculative requests beside what plain decoding would have taken."""
    found: dict[str, Costed] = defaultdict(Costed)
    for cell, costed in costed_cells(cells):
        if costed is not None:
            found[cell.key.task].add(costed)
    return dict(found)


def costed_cells(cells: Iterable[CellActivity]) -> Iterator[tuple[CellActivity, Costed | None]]:
    """Yield every cell beside what plain decoding would have taken; None for plain cells and where it is not known."""
    cells = list(cells)
    known = plain_steps(cells)
    for cell in cells:
        yield cell, _costed(cell.sums, nearest(known, cell.key)) if cell.key.k > 0 else None


def _costed(sums: ActivitySums, plain_us: float | None) -> Costed | None:
    """Return one cell's sums; None where its steps or T_plain are not known."""
    tokens = sums.rounds + sums.accepted + sums.undrafted
    if not tokens or not sums.draft_us + sums.verify_us + sums.plain_us:
        return None
    if plain_us is None:
        if not sums.expected_plain_us:
            return None
        plain_us = sums.expected_plain_us / tokens
    return Costed(sums.draft_us, sums.verify_us, sums.plain_us, sums.rounds, tokens * plain_us, sums.rounds * plain_us)


def _place(key: CellKey) -> Place:
    return key.backend, key.epoch, key.load, key.context


def nearest(known: Mapping[Place, float], key: CellKey) -> float | None:
    """Return T_plain of the cell's context band, or of the nearest one at the same load."""
    own = CONTEXT_BANDS.index(key.context)
    for band in sorted(CONTEXT_BANDS, key=lambda band: abs(CONTEXT_BANDS.index(band) - own)):
        if (found := known.get((key.backend, key.epoch, key.load, band))) is not None:
            return found
    return None
