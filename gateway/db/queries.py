"""Reads of the roll-ups: sums and merged histograms over a window. Called by `Database`; never touches raw rows."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import BigInteger, ColumnElement, Select, and_, cast, func, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.db.models import (
    ACCEPTED_COLUMNS,
    CELL_COLUMNS,
    DAY,
    HOUR,
    MINUTE,
    TOLD,
    ActivityRollup,
    Cell,
    LatencyRollup,
)
from gateway.db.rollups import SUMS
from gateway.histogram import LatencyCell, LogHistogram, Metric
from gateway.types import Arm, CellKey

_TOLD_KEPT = 47 * 60
"""Minutes for which told minutes are there for certain."""


class ActivitySums(msgspec.Struct):
    """Σ over the requests of a group; see `ActivityRollup` for each column. Integers, the same on both databases."""

    requests: int = 0
    failed: int = 0
    fallbacks: int = 0
    loops: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    overhead_us: int = 0
    ttft_us: int = 0
    e2e_us: int = 0
    measured: int = 0
    decode_tokens: int = 0
    decode_us: int = 0
    tokens_tokens: int = 0
    tokens_time: int = 0
    time_time: int = 0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    zero_rounds: int = 0
    undrafted: int = 0
    draft_us: int = 0
    verify_us: int = 0
    plain_us: int = 0
    expected_plain_us: int = 0
    expected_round_plain_us: int = 0
    accelerator_tokens: int = 0
    accelerator_us: int = 0
    tokens_accelerator: int = 0
    accelerator_accelerator: int = 0
    accepted_histogram: list[int] = msgspec.field(default_factory=lambda: [0] * ACCEPTED_COLUMNS)
    """`[j]`: rounds with j accepted draft tokens; the last entry counts 16 and more."""

    def add(self, other: ActivitySums) -> None:
        """Add another group's sums."""
        for name in self.__struct_fields__[:-1]:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        pairs = zip(self.accepted_histogram, other.accepted_histogram, strict=True)
        self.accepted_histogram = [mine + its for mine, its in pairs]


class TaskActivity(msgspec.Struct):
    """What the roll-ups say of one task in one arm, one API key and one kind of decision, over a window."""

    task: str
    arm: Arm
    key_id: str
    state: str
    """`Decision.state`: how the arm came to be taken (`holdout` and `probe` were drawn at random)."""
    sums: ActivitySums


class CellActivity(msgspec.Struct):
    """What the roll-ups say of one cell over a window, all keys and kinds of decision together."""

    key: CellKey
    sums: ActivitySums


class TaskLatency(msgspec.Struct):
    """The latencies of one task in one arm, over a window."""

    task: str
    arm: Arm
    metric: Metric
    histogram: LogHistogram


class TaskSummary(msgspec.Struct):
    """Everything that the page and the reports read of a window."""

    activity: list[TaskActivity]
    latency: list[TaskLatency]


class ActivityPoint(msgspec.Struct):
    """One point of a time series: one task in one arm."""

    at: int
    """Unix time of the span's beginning."""
    task: str
    arm: Arm
    sums: ActivitySums


async def activity_by_task(connection: AsyncConnection, first: int, last: int) -> list[TaskActivity]:
    """Sum by task, arm, API key and state over minutes `first` … `last`."""
    groups = (Cell.task, Cell.backend, Cell.method, Cell.k, ActivityRollup.key_id, ActivityRollup.state)
    rows = await connection.execute(sums_by(groups, first, last))
    return [
        TaskActivity(row[0], Arm(row[1], row[2], row[3]), row[4], row[5], sums_of(row[6:])) for row in rows.fetchall()
    ]


async def activity_by_cell(connection: AsyncConnection, first: int, last: int) -> list[CellActivity]:
    """Sum by cell over minutes `first` … `last`."""
    size = len(CELL_COLUMNS)
    rows = await connection.execute(sums_by([getattr(Cell, name) for name in CELL_COLUMNS], first, last))
    return [CellActivity(CellKey(*row[:size]), sums_of(row[size:])) for row in rows.fetchall()]


async def activity_series(connection: AsyncConnection, first: int, last: int, step: int) -> list[ActivityPoint]:
    """Sum by task and arm in steps of `step` minutes, oldest first."""
    start = ActivityRollup.minute - ActivityRollup.minute % step
    groups = (start.label("start"), Cell.task, Cell.backend, Cell.method, Cell.k)
    rows = await connection.execute(
        sums_by(groups, first, last, DAY if step >= DAY else HOUR if step % HOUR == 0 else MINUTE)
    )
    return [ActivityPoint(row[0] * 60, row[1], Arm(*row[2:5]), sums_of(row[5:])) for row in rows.fetchall()]


async def packed_by_task(
    connection: AsyncConnection, first: int, last: int, metrics: Sequence[Metric]
) -> dict[tuple[Any, ...], list[bytes]]:
    """Return the packed histograms of each task, arm and metric over minutes `first` … `last`."""
    table = LatencyRollup
    query = select(Cell.task, Cell.backend, Cell.method, Cell.k, table.metric, table.histogram)
    return await grouped(connection, _joined(query, first, last, metrics), lambda row: (tuple(row[:5]), row[5]))


async def packed_by_cell(
    connection: AsyncConnection, first: int, last: int, metrics: Sequence[Metric], resolution: int
) -> dict[tuple[Any, ...], list[bytes]]:
    """Return the packed histograms of each cell, metric, span and its length (at least `resolution` minutes)."""
    table, size = LatencyRollup, len(CELL_COLUMNS)
    cell = (getattr(Cell, name) for name in CELL_COLUMNS)

    def key_of(row: Any) -> tuple[tuple[Any, ...], bytes]:  # noqa: ANN401 — a row of this query
        metric, span, minute, packed = row[size:]
        span = max(span, resolution)
        return (*row[:size], metric, minute - minute % span, span), packed

    query = select(*cell, table.metric, table.span, table.minute, table.histogram)
    return await grouped(connection, _joined(query, first, last, metrics, MINUTE), key_of)


def merge_tasks(packed: Mapping[tuple[Any, ...], list[bytes]]) -> list[TaskLatency]:
    """Merge what `packed_by_task` returned; takes CPU time, so run it in a thread."""
    return [
        TaskLatency(key[0], Arm(*key[1:4]), key[4], LogHistogram.merge_encoded(packed[key])) for key in sorted(packed)
    ]


def merge_cells(packed: Mapping[tuple[Any, ...], list[bytes]]) -> list[LatencyCell]:
    """Merge what `packed_by_cell` returned; takes CPU time, so run it in a thread."""
    return [
        LatencyCell(CellKey(*key[:-3]), key[-3], key[-2], LogHistogram.merge_encoded(packed[key]), key[-1])
        for key in sorted(packed)
    ]


async def grouped(
    connection: AsyncConnection,
    query: Select[*tuple[Any, ...]],
    key_of: Callable[[Any], tuple[tuple[Any, ...], bytes]],
) -> dict[tuple[Any, ...], list[bytes]]:
    """Read packed histograms by key, in portions, so that the event loop is never held for long."""
    found: dict[tuple[Any, ...], list[bytes]] = defaultdict(list)
    rows = await connection.stream(query)
    async for part in rows.partitions(500):
        for row in part:
            key, packed = key_of(row)
            found[key].append(packed)
        await asyncio.sleep(0)
    return found


def _joined(query: Any, first: int, last: int, metrics: Sequence[Metric], finest: int = DAY) -> Any:  # noqa: ANN401 — any Select
    table = LatencyRollup
    return query.join(Cell, Cell.id == table.cell_id).where(
        within(table, first, last, finest), table.metric.in_(metrics)
    )


def within(
    table: type[ActivityRollup | LatencyRollup], first: int, last: int, finest: int = DAY
) -> ColumnElement[bool]:
    """Return the condition that takes every request of minutes `first` … `last` once.

    Whole days come from day rows and whole hours from hour rows, which tell all of their told minutes; what is left at
    the edges comes from told minutes, and what no hour tells yet from fresh ones. With `finest` of an hour day rows
    are not used, with a minute only minutes are: the finer rows are not kept for ever. An edge older than minutes are
    kept has the hours that begin in it.
    """
    minute, span = table.minute, table.span
    if finest == MINUTE:
        return and_(span.in_((TOLD, MINUTE)), minute.between(first, last))
    kept_since = int(time.time() // 60) - _TOLD_KEPT
    hours_from = first if first < kept_since else -(-first // HOUR) * HOUR
    hours_to = (last + 1) // HOUR * HOUR
    ranges = [(MINUTE, first, last)]
    if hours_from >= hours_to:
        ranges += [(TOLD, first, last)]
        return _any_of(table, ranges)
    ranges += [(TOLD, first, hours_from - 1), (TOLD, hours_to, last)]
    days_from, days_to = -(-first // DAY) * DAY, (last + 1) // DAY * DAY
    if finest == HOUR or days_from >= days_to:
        ranges += [(HOUR, hours_from, hours_to - 1)]
    else:
        ranges += [(HOUR, hours_from, days_from - 1), (HOUR, days_to, hours_to - 1), (DAY, days_from, days_to - 1)]
    return _any_of(table, ranges)


def _any_of(table: type[ActivityRollup | LatencyRollup], ranges: Sequence[tuple[int, int, int]]) -> ColumnElement[bool]:
    """Return one flat OR of (span, first, last): each is found by the key; an OR within would read whole spans."""
    parts = [and_(table.span == span, table.minute.between(a, b)) for span, a, b in ranges if a <= b]
    return or_(*parts)


def sums_by(groups: Sequence[Any], first: int, last: int, finest: int = DAY) -> Any:  # noqa: ANN401 — SQLAlchemy's Select of this shape has no name
    """Return the query that sums all columns by these groups over minutes `first` … `last`."""
    # PostgreSQL's sum of a bigint is numeric, which takes long to read; no sum comes near 63 bits.
    sums = (cast(func.sum(getattr(ActivityRollup, name)), BigInteger) for name in SUMS)
    return (
        select(*groups, *sums)
        .select_from(ActivityRollup)
        .join(Cell, Cell.id == ActivityRollup.cell_id)
        .where(within(ActivityRollup, first, last, finest))
        .group_by(*groups)
        .order_by(*groups)
    )


def sums_of(values: Sequence[Any]) -> ActivitySums:
    """Return what `sums_by` summed."""
    numbers = [int(value) for value in values]  # as a report's own query may give them without the cast
    plain = len(SUMS) - ACCEPTED_COLUMNS
    named = dict(zip(SUMS[:plain], numbers[:plain], strict=True))
    return ActivitySums(**named, accepted_histogram=numbers[plain:])
