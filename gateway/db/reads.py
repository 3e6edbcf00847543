"""What pages, reports and the p99 guard read of a window: roll-ups only, unpacked and merged off the event loop.

Part of `Database`. The text of the queries that reports show is compiled from the very statements that are run.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from sqlalchemy import select

from gateway.db import queries, windows
from gateway.db.models import CELL_COLUMNS, DAY, HOUR, MINUTE, Cell, DecisionChange
from gateway.db.packed import Ints, code_of, code_parts, sum_by
from gateway.db.sums import ActivityKey, ActivityTable, sum_groups
from gateway.db.transactions import Transactions
from gateway.db.types import utc
from gateway.db.window import ActivityPoint, Latencies, Window, arm_of
from gateway.histogram import METRICS, LatencyCell, Metric
from gateway.types import CellKey

_BUCKET_BITS = 11
_CELL_BITS = 26
"""Of a cell's number beside that of a key or of a step of time."""
_CHUNK = 5000
SHOWN: tuple[Metric, ...] = ("ttft", "tpot", "itl")
"""The latencies of pages and reports."""


class Query(msgspec.Struct):
    """A query behind figures, as it was sent."""

    id: str
    about: str
    sql: str


class Reads(Transactions):
    """The methods that `Database` inherits."""

    def __init__(self, url: str, *, timeout_s: float = 5.0) -> None:
        super().__init__(url, timeout_s=timeout_s)
        self._keys: dict[int, CellKey] = {}

    async def window(self, since: float, until: float | None = None, metrics: Sequence[Metric] = SHOWN) -> Window:
        """Return everything that pages and reports show of the time between two Unix times."""
        first, last = _minutes(since, until)
        async with self._read(30.0) as connection:
            sums = await queries.read_sums(connection, first, last, step=DAY)
            latencies = await queries.read_latencies(connection, first, last, metrics)
        folded, parts = await asyncio.to_thread(lambda: (_fold(sums), list(queries.entries(latencies))))
        cells = await self._cells_of([folded.cells, *(part.cells for part in parts)])
        return await asyncio.to_thread(lambda: Window(folded.table(cells), Latencies.of(parts, cells)))

    async def task_series(self, since: float, step_minutes: int, names: Sequence[str]) -> list[ActivityPoint]:
        """Return sums by task and arm from a Unix time on, in steps of `step_minutes`; only those that are named."""
        first, last = _minutes(since, None)
        finest = DAY if step_minutes % DAY == 0 else HOUR if step_minutes % HOUR == 0 else MINUTE
        async with self._read(30.0) as connection:
            rows = await queries.read_sums(connection, first, last, step=step_minutes, finest=finest, names=names)
        codes, sums = await asyncio.to_thread(_by_step, rows, step_minutes, names)
        steps, ids = codes >> _CELL_BITS, codes & ((1 << _CELL_BITS) - 1)
        cells = await self._cells_of([ids])
        return _points(steps * step_minutes * 60, [cells[cell] for cell in ids.tolist()], sums, names)

    async def p99_history(
        self,
        since: float,
        until: float | None = None,
        metrics: Sequence[Metric] = METRICS,
        *,
        resolution_minutes: int = 60,
    ) -> list[LatencyCell]:
        """Return the latencies of each cell, hour by hour unless said otherwise, between two Unix times."""
        first, last = _minutes(since, until)
        async with self._read(30.0) as connection:
            rows = await queries.read_latencies(connection, first, last, metrics, finest=MINUTE)
        parts = await asyncio.to_thread(lambda: list(queries.entries(rows)))
        cells = await self._cells_of([part.cells for part in parts])
        return await asyncio.to_thread(_cells, parts, cells, resolution_minutes)

    def statements(self, since: float, until: float) -> list[Query]:
        """Return the text of every query of a report over this time."""
        first, last = _minutes(since, until)
        ranges = windows.ranges_of(first, last)
        changes = select(DecisionChange.__table__).where(DecisionChange.at >= utc(first * 60))
        named: tuple[tuple[str, str, tuple[Any, ...]], ...] = (
            ("sums", "sums by cell, application and draw of the holdout: of fresh minutes, then of packed ones",
             (queries.fresh_sums(first, last, DAY), queries.packed_sums(ranges))),
            ("tails", "latency histograms by cell, merged after reading: of fresh minutes, then of packed ones",
             (queries.fresh_latencies(first, last, SHOWN), queries.packed_latencies(ranges, SHOWN))),
            ("switches", "the switch log", (changes.order_by(DecisionChange.id.desc()),)),
        )  # fmt: skip
        return [Query(name, about, ";\n".join(map(self._text, statements))) for name, about, statements in named]

    def _text(self, statement: Any) -> str:  # noqa: ANN401  # any Select
        return str(statement.compile(dialect=self._engine.dialect, compile_kwargs={"literal_binds": True}))

    async def _cells_of(self, ids: Sequence[Ints]) -> dict[int, CellKey]:
        """Return the cells of these numbers; a cell never changes, so that each is read once."""
        wanted = np.unique(np.concatenate(ids)).tolist() if ids else []
        unknown = [number for number in wanted if number not in self._keys]
        columns = [getattr(Cell, name) for name in CELL_COLUMNS]
        for start in range(0, len(unknown), _CHUNK):
            query = select(Cell.id, *columns).where(Cell.id.in_(unknown[start : start + _CHUNK]))
            async with self._read() as connection:
                rows = (await connection.execute(query)).fetchall()
            self._keys |= {row[0]: CellKey(*row[1:]) for row in rows}
        return {number: self._keys[number] for number in wanted}


def _minutes(since: float, until: float | None) -> tuple[int, int]:
    return int(since // 60), int((time.time() if until is None else until) // 60) + (until is None)


class _Folded(NamedTuple):
    """Sums by cell, API key and draw."""

    cells: Ints
    keys: list[str]
    draws: Ints
    sums: Ints

    def table(self, cells: Mapping[int, CellKey]) -> ActivityTable:
        """Return them with the cells' own names."""
        places = zip(self.cells.tolist(), self.keys, self.draws.tolist(), strict=True)
        return ActivityTable([ActivityKey(cells[cell], key, draw) for cell, key, draw in places], self.sums)


def _fold(rows: queries.Rows) -> _Folded:
    keys = queries.KeyIds()
    code = lambda block: code_of((block.keys << _CELL_BITS) + block.cells, block.draws)  # noqa: E731
    codes, sums = queries.fold(queries.blocks(rows, keys), code)
    places, draws = code_parts(codes)
    names = list(keys.numbers)
    of = [names[key] for key in (places >> _CELL_BITS).tolist()]
    return _Folded(places & ((1 << _CELL_BITS) - 1), of, draws, sums)


def _by_step(rows: queries.Rows, step: int, names: Sequence[str]) -> tuple[Ints, Ints]:
    def code(block: queries.Block) -> Ints:
        return (block.minutes // step << _CELL_BITS) + block.cells

    return queries.fold(queries.blocks(rows, queries.KeyIds(), names), code, len(names))


def _points(at: Ints, cells: Sequence[CellKey], sums: Ints, names: Sequence[str]) -> list[ActivityPoint]:
    """Return what cells of the same step, task and arm have together, oldest first."""
    groups = ((moment, cell.task, arm_of(cell)) for moment, cell in zip(at.tolist(), cells, strict=True))
    summed = sum_groups(groups, sums)
    return [ActivityPoint(*group, dict(zip(names, row, strict=True))) for group, row in summed.items()]


def _cells(parts: Iterable[queries.Entries], cells: dict[int, CellKey], resolution: int) -> list[LatencyCell]:
    """Merge by cell, metric and step of time."""
    found: list[tuple[CellKey, Metric, int, Any]] = []
    by_metric: dict[Any, list[queries.Entries]] = {}
    for part in parts:
        by_metric.setdefault(part.metric, []).append(part)
    numbers = {cell: at for at, cell in enumerate(cells)}
    known = list(cells.values())
    for metric, mine in by_metric.items():
        codes, counts = zip(*((_codes(part, numbers, resolution), part.counts) for part in mine), strict=True)
        merged, summed = sum_by(np.concatenate(codes), np.concatenate(counts)[None, :])
        places = merged >> _BUCKET_BITS
        starts = np.flatnonzero(np.append(True, np.diff(places) != 0)) if len(places) else places
        for begin, end in zip(starts, np.append(starts[1:], len(places)), strict=True):
            step, cell = divmod(int(places[begin]), len(known))
            buckets = merged[begin:end] & ((1 << _BUCKET_BITS) - 1)
            found.append((known[cell], metric, step * resolution, queries.histogram(buckets, summed[0, begin:end])))
    return [LatencyCell(*each, resolution) for each in sorted(found, key=lambda each: each[:3])]


def _codes(part: queries.Entries, numbers: dict[int, int], resolution: int) -> Ints:
    cells = np.array([numbers[cell] for cell in part.cells.tolist()], dtype=np.int64)
    places = part.minutes // resolution * len(numbers) + cells
    return (np.repeat(places, part.lengths) << _BUCKET_BITS) + part.buckets
