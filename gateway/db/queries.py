"""Reads of the roll-ups: sums and merged histograms over a window. Called by `Database`; never touches raw rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, cast

import msgspec
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.db.models import ACCEPTED_COLUMNS, CELL_COLUMNS, ActivityRollup, Cell, LatencyRollup
from gateway.db.rollups import SUMS
from gateway.histogram import LatencyCell, LogHistogram, Metric
from gateway.types import Arm, CellKey

HOUR = 60


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
    rows = await connection.execute(_sums_by(groups, first, last))
    return [
        TaskActivity(row[0], Arm(row[1], row[2], row[3]), row[4], row[5], _sums(row[6:])) for row in rows.fetchall()
    ]


async def activity_by_cell(connection: AsyncConnection, first: int, last: int) -> list[CellActivity]:
    """Sum by cell over minutes `first` … `last`."""
    size = len(CELL_COLUMNS)
    rows = await connection.execute(_sums_by([getattr(Cell, name) for name in CELL_COLUMNS], first, last))
    return [CellActivity(CellKey(*row[:size]), _sums(row[size:])) for row in rows.fetchall()]


async def activity_series(connection: AsyncConnection, first: int, last: int, step: int) -> list[ActivityPoint]:
    """Sum by task and arm in steps of `step` minutes, oldest first."""
    start = ActivityRollup.minute - ActivityRollup.minute % step
    rows = await connection.execute(
        _sums_by((start.label("start"), Cell.task, Cell.backend, Cell.method, Cell.k), first, last)
    )
    return [ActivityPoint(row[0] * 60, row[1], Arm(*row[2:5]), _sums(row[5:])) for row in rows.fetchall()]


async def latency_by_task(
    connection: AsyncConnection, first: int, last: int, metrics: Sequence[Metric]
) -> list[TaskLatency]:
    """Merge histograms by task, arm and metric over minutes `first` … `last`."""
    table = LatencyRollup
    rows = await connection.stream(
        select(Cell.task, Cell.backend, Cell.method, Cell.k, table.metric, table.histogram)
        .join(Cell, Cell.id == table.cell_id)
        .where(table.minute.between(first, last), table.metric.in_(metrics))
    )
    merged: dict[tuple[Any, ...], LogHistogram] = defaultdict(LogHistogram)
    async for part in rows.partitions(5000):
        grouped: dict[tuple[Any, ...], list[bytes]] = defaultdict(list)
        for row in part:
            grouped[tuple(row[:5])].append(row[5])
        for key, blobs in grouped.items():
            merged[key].merge(LogHistogram.merge_encoded(blobs))
    return [TaskLatency(key[0], Arm(*key[1:4]), key[4], merged[key]) for key in sorted(merged)]


async def latency_cells(
    connection: AsyncConnection, first: int, last: int, metrics: Sequence[Metric]
) -> list[LatencyCell]:
    """Merge histograms by cell, metric and hour (or day, where only day rows are left)."""
    table = LatencyRollup
    rows = await connection.execute(
        select(*(getattr(Cell, name) for name in CELL_COLUMNS), table.metric, table.span, table.minute, table.histogram)
        .join(Cell, Cell.id == table.cell_id)
        .where(table.minute.between(first, last), table.metric.in_(metrics))
    )
    grouped: dict[tuple[CellKey, str, int, int], list[bytes]] = defaultdict(list)
    size = len(CELL_COLUMNS)
    for row in rows:
        metric, span, minute, packed = row[size:]
        span = max(span, HOUR)
        grouped[CellKey(*row[:size]), metric, minute - minute % span, span].append(packed)
    return [
        LatencyCell(key, cast("Metric", metric), minute, LogHistogram.merge_encoded(blobs), span)
        for (key, metric, minute, span), blobs in sorted(grouped.items(), key=lambda item: item[0])
    ]


def _sums_by(groups: Sequence[Any], first: int, last: int) -> Any:  # noqa: ANN401 — SQLAlchemy's Select of this shape has no name
    """Return the query; int(): PostgreSQL's sum of a bigint is numeric."""
    sums = (func.sum(getattr(ActivityRollup, name)) for name in SUMS)
    return (
        select(*groups, *sums)
        .select_from(ActivityRollup)
        .join(Cell, Cell.id == ActivityRollup.cell_id)
        .where(ActivityRollup.minute.between(first, last))
        .group_by(*groups)
        .order_by(*groups)
    )


def _sums(values: Sequence[Any]) -> ActivitySums:
    numbers = [int(value) for value in values]
    plain = len(SUMS) - ACCEPTED_COLUMNS
    named = dict(zip(SUMS[:plain], numbers[:plain], strict=True))
    return ActivitySums(**named, accepted_histogram=numbers[plain:])
