"""Measured step costs by batch, context band, method and draft length. Filled by the core, read by the server.

Medians, never means: one preempted step must not move a cell. Verify passes and drafts are kept as multiples of the
plain steps just before them and reported in terms of the present plain step: where the machine slows down, a draft
length that nobody uses meanwhile keeps its ratio. A verify pass costs the same whoever drafted, so its samples are
shared by all methods; a cell is reported once plain steps, verify passes and drafts of its kind have been timed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import statistics
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from engine.messages import CostCell, CostTable

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

MAX_AGE_S = 7 * 86_400.0
"""A kept table older than this is measured anew."""

K = TypeVar("K")
V = TypeVar("V")

log = logging.getLogger(__name__)


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

    def table(self) -> CostTable:
        """Return the cells of which every part has been measured; at most `FRESH_S` old."""
        with self._lock:
            now = time.monotonic()
            if now - self._computed >= FRESH_S:
                self._table = CostTable(list(self._cells()))
                self._computed = now
            return self._table

    def break_even(self, method: str, load: int, context: int) -> list[tuple[int, float]]:
        """Return pairs (k, x), a round at k costing x plain steps at the nearest load and context; [] if unknown."""
        near = _nearest([cell for cell in self.table().cells if cell.method == method], load, context)
        return [(cell.k, (cell.draft_s + cell.verify_s) / cell.plain_s) for cell in near]

    def near(self, load: int, context: int) -> list[CostCell]:
        """Return all methods' cells at the nearest load and context; none before the first profile is complete."""
        return _nearest(self.table().cells, load, context) if self.profiled else []

    def save(self, path: Path) -> None:
        """Keep the table for the next start; a folder that cannot be written is logged and let be."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
                file.write(msgspec.json.encode(self.table()))
            Path(file.name).replace(path)
        except OSError as error:
            log.warning("step costs are not kept: %s", error)

    def load(self, path: Path) -> bool:
        """Begin with a kept table; False where there is none that can be read."""
        try:
            if time.time() - path.stat().st_mtime > MAX_AGE_S:
                return False
            kept = msgspec.json.decode(path.read_bytes(), type=CostTable)
        except FileNotFoundError:
            return False
        except (OSError, msgspec.MsgspecError) as error:
            log.warning("%s: kept step costs cannot be read (%s); they are measured anew", path, error)
            return False
        for cell in kept.cells:
            times = max(1, min(cell.n, WINDOW // 4))
            timing = StepTiming(cell.draft_s, cell.verify_s)
            plain = StepTiming(0.0, cell.plain_s)
            for _ in range(times):
                self.observe(batch=cell.batch, context=cell.context, k=cell.k, method=cell.method, timing=timing)
                self.observe(batch=cell.batch, context=cell.context, k=0, method="plain", timing=plain)
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


def cache_path(folder: Path, *facts: object) -> Path:
    """Return where the costs of this model, type of numbers, device and number of threads are kept."""
    text = json.dumps([*map(str, facts), os.cpu_count()])
    return folder / "costs" / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


def _keep(samples: dict[K, deque[V]], key: K, sample: V) -> None:
    samples.setdefault(key, deque(maxlen=WINDOW)).append(sample)


def _nearest(cells: Sequence[CostCell], load: int, context: int) -> list[CostCell]:
    if not cells:
        return []
    edge = context_edge(context)
    _, batch, context = min((_distance(cell, load, edge), cell.batch, cell.context) for cell in cells)
    return [cell for cell in cells if cell.batch == batch and cell.context == context]


def _distance(cell: CostCell, load: int, edge: int) -> tuple[float, int]:
    """How far a cell lies from a load (as a ratio), then from a context."""
    return max(cell.batch, load) / max(1, min(cell.batch, load)), abs(cell.context - edge)
