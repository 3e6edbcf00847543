"""Measured step costs by batch, context band, method and draft length. Filled by the core, read by the server.

Medians, never means: one preempted step must not move a cell. Verify passes and drafts are kept as multiples of the
plain steps just before them and reported in terms of the present plain step: where the machine slows down, a draft
length that nobody uses meanwhile keeps its ratio. A verify pass costs the same whoever drafted, so its samples are
shared by all methods; a cell is reported once plain steps, verify passes and drafts of its kind have been timed.
"""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from engine.kept_costs import load_table, save_table
from engine.messages import CostCell, CostTable, MixedCell
from engine.mixed_costs import MixedCosts, StepLine, fit_line

CONTEXT_EDGES = (0, 512, 2048, 8192, 32768)
"""Lower edges of the context bands."""
WINDOW = 48
"""Latest samples kept of each kind of step."""
NEAR = 3
"""Latest plain steps that a round is set against."""
ALTERNATE_S = 2.0
"""Age up to which a step of the other kind makes a step comparable."""
FRESH_S = 2.0
"""Age up to which a computed table is handed out again."""

K = TypeVar("K")
V = TypeVar("V")


@dataclass(slots=True, frozen=True)
class StepTiming:
    """Wall time of one step, seconds: the draft phase, and everything after it."""

    draft_s: float
    verify_s: float


@dataclass(slots=True, frozen=True)
class Sample:
    """One timed part of a round, seconds, and a plain step of that moment (None: not known)."""

    seconds: float
    plain_s: float | None

    def seconds_at(self, plain_s: float) -> float:
        """Return what it would take where a plain step takes `plain_s`."""
        return self.seconds * (plain_s / self.plain_s) if self.plain_s else self.seconds


def context_edge(tokens: int) -> int:
    """Return the lower edge of the context band of `tokens`."""
    return max(edge for edge in CONTEXT_EDGES if edge <= tokens)


class CostModel:
    """Samples by kind of step. `observe` belongs to the step thread, the rest to anyone."""

    def __init__(self) -> None:
        self._plain: dict[tuple[int, int], deque[float]] = {}
        """Seconds, by batch and context edge."""
        self._recent: dict[tuple[int, int], deque[float]] = {}
        """The same of the latest plain steps, those that do not count included."""
        self._verify: dict[tuple[int, int, int], deque[Sample]] = {}
        """By batch, context edge and k."""
        self._draft: dict[tuple[int, int, int, str], deque[Sample]] = {}
        self._mixed = MixedCosts()
        self._lines: dict[tuple[int, int], tuple[float, StepLine | None]] = {}
        """Lines handed out by batch and context edge, and when each was drawn."""
        self._latest: dict[tuple[int, int, bool], float] = {}
        self._lock = threading.Lock()
        self._table = CostTable([])
        self._computed = -FRESH_S
        self.profiled = False
        """Whether the first profile is complete."""

    def observe(self, *, batch: int, context: int, k: int, method: str, timing: StepTiming) -> None:
        """Take one step of `batch` sequences, all with `k` draft tokens of `method` (0: plain).

        Once profiled, only steps that alternate with their counterpart count: a plain step of a quiet minute must
        not be set against a round of a busy one.
        """
        edge = context_edge(context)
        with self._lock:
            if not k:
                self._recent.setdefault((batch, edge), deque(maxlen=NEAR)).append(timing.verify_s)
            if self.profiled and not self._alternates(batch, edge, plain=k == 0):
                return
            self._keep_verify(batch, edge, k, timing.verify_s)
            if k:
                _keep(self._draft, (batch, edge, k, method), Sample(timing.draft_s, self._near(batch, edge)))

    def observe_verify(self, *, batch: int, context: int, k: int, seconds: float) -> None:
        """Take the time of one verify pass alone (k = 0: a plain step)."""
        edge = context_edge(context)
        with self._lock:
            if not k:
                self._recent.setdefault((batch, edge), deque(maxlen=NEAR)).append(seconds)
            self._keep_verify(batch, edge, k, seconds)

    def observe_draft(self, *, batch: int, context: int, k: int, method: str, seconds: float) -> None:
        """Take the time of one draft phase alone."""
        edge = context_edge(context)
        with self._lock:
            _keep(self._draft, (batch, edge, k, method), Sample(seconds, self._near(batch, edge)))

    def observe_mixed(self, *, batch: int, context: int, drafted: int, seconds: float) -> None:
        """Take a verify pass whose rows had unlike numbers of draft tokens, `drafted` in all.

        It counts only beside plain steps of its moment.
        """
        edge = context_edge(context)
        with self._lock:
            plain_s = self._near(batch, edge)
            if plain_s is None:
                return
            if not self.profiled:
                self._mixed.profile((batch, edge), drafted, seconds / plain_s)
            elif time.monotonic() - self._latest.get((batch, edge, True), -math.inf) < ALTERNATE_S:
                self._mixed.serve(_nearest_key(self._mixed.keys, batch, edge), drafted, seconds / plain_s)

    def table(self) -> CostTable:
        """Return the cells of which every part has been measured; at most `FRESH_S` old."""
        with self._lock:
            now = time.monotonic()
            if now - self._computed >= FRESH_S:
                self._table = CostTable(list(self._cells()), list(self._mixed_cells()))
                self._computed = now
            return self._table

    def break_even(self, method: str, load: int, context: int) -> list[tuple[int, float]]:
        """Return pairs (k, x), a round at k costing x plain steps at the nearest load and context; [] if unknown."""
        near = _nearest([cell for cell in self.table().cells if cell.method == method], load, context)
        return [(cell.k, (cell.draft_s + cell.verify_s) / cell.plain_s) for cell in near]

    def near(self, load: int, context: int) -> list[CostCell]:
        """Return all methods' cells at the nearest load and context; none before the first profile is complete."""
        return _nearest(self.table().cells, load, context) if self.profiled else []

    def mixed_line(self, load: int, context: int) -> StepLine | None:
        """Return what steps with unlike rows cost at the nearest load and context; at most `FRESH_S` old.

        Where such steps were never measured, the line goes through steps of rows all alike. None before the first
        profile is complete.
        """
        if not self.profiled:
            return None
        with self._lock:
            where, now = (load, context_edge(context)), time.monotonic()
            drawn, line = self._lines.get(where, (-math.inf, None))
            if now - drawn < FRESH_S:
                return line
            line = self._mixed.line(_nearest_key(self._mixed.keys, *where))
        if line is None:
            cells = _nearest(self.table().cells, load, context)
            line = fit_line([(cell.batch * cell.k, cell.verify_s / cell.plain_s) for cell in cells])
        self._lines[where] = (now, line)
        return line

    def save(self, path: Path) -> None:
        """Keep the table for the next start; a folder that cannot be written is logged and let be."""
        save_table(path, self.table())

    def load(self, path: Path) -> bool:
        """Begin with a kept table; False where there is none that can be read."""
        kept = load_table(path)
        if kept is None:
            return False
        for cell in kept.cells:
            timing, plain = StepTiming(cell.draft_s, cell.verify_s), StepTiming(0.0, cell.plain_s)
            for _ in range(max(1, min(cell.n, WINDOW // 4))):
                self.observe(batch=cell.batch, context=cell.context, k=cell.k, method=cell.method, timing=timing)
                self.observe(batch=cell.batch, context=cell.context, k=0, method="plain", timing=plain)
        for each in kept.mixed:
            for _ in range(each.n):
                self._mixed.profile((each.batch, each.context), each.drafted, each.verify_s / each.plain_s)
        self.profiled = bool(kept.cells)
        return self.profiled

    def _keep_verify(self, batch: int, edge: int, k: int, seconds: float) -> None:
        if k:
            _keep(self._verify, (batch, edge, k), Sample(seconds, self._near(batch, edge)))
        else:
            _keep(self._plain, (batch, edge), seconds)

    def _near(self, batch: int, edge: int) -> float | None:
        """Return the median of the latest plain steps, None before there was one."""
        plain = self._recent.get((batch, edge))
        return statistics.median(plain) if plain else None

    def _alternates(self, batch: int, edge: int, *, plain: bool) -> bool:
        """Whether the other kind of step (round or plain) was seen just before at this batch and context."""
        now = time.monotonic()
        self._latest[batch, edge, plain] = now
        return now - self._latest.get((batch, edge, not plain), -math.inf) < ALTERNATE_S

    def _mixed_cells(self) -> Iterable[MixedCell]:
        for (batch, context), drafted, ratio, n in self._mixed.medians():
            plain = self._plain.get((batch, context))
            if plain:
                plain_s = statistics.median(plain)
                yield MixedCell(batch, context, drafted, ratio * plain_s, plain_s, n)

    def _cells(self) -> Iterable[CostCell]:
        for (batch, context, k, method), drafts in sorted(self._draft.items()):
            verify = self._verify.get((batch, context, k))
            plain = self._plain.get((batch, context))
            if verify and plain:
                plain_s = statistics.median(plain)
                yield CostCell(
                    batch=batch,
                    context=context,
                    k=k,
                    method=method,
                    draft_s=statistics.median(sample.seconds_at(plain_s) for sample in drafts),
                    verify_s=statistics.median(sample.seconds_at(plain_s) for sample in verify),
                    plain_s=plain_s,
                    n=min(len(verify), len(plain)),
                )


def _keep(samples: dict[K, deque[V]], key: K, sample: V) -> None:
    samples.setdefault(key, deque(maxlen=WINDOW)).append(sample)


def _nearest(cells: Sequence[CostCell], load: int, context: int) -> list[CostCell]:
    if not cells:
        return []
    batch, edge = _nearest_key([(cell.batch, cell.context) for cell in cells], load, context_edge(context))
    return [cell for cell in cells if cell.batch == batch and cell.context == edge]


def _nearest_key(keys: Iterable[tuple[int, int]], load: int, edge: int) -> tuple[int, int]:
    """Return the batch and context edge nearest to a load (as a ratio), then to a context; (load, edge) among none."""
    return min(
        keys,
        key=lambda key: (max(key[0], load) / max(1, min(key[0], load)), abs(key[1] - edge), key),
        default=(load, edge),
    )
