"""Reads of the roll-ups: sums and merged histograms over a window. Called by `Database`; never touches raw rows.

What is read within a transaction is unpacked and summed after it, in a thread.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from sqlalchemy import BigInteger, Select, cast, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.db import windows
from gateway.db.models import WEEK, ActivityMinute, ActivityPacked, LatencyMinute, LatencyPacked
from gateway.db.packed import Ints, sum_by, unpack, unpack_histograms
from gateway.db.rollups import SUMS
from gateway.histogram import LAST_BUCKET, LogHistogram, Metric, decode_entries

BUCKETS = LAST_BUCKET + 1
_ROWS_HELD = 32_768
"""Unpacked rows of sums that are kept before they are summed."""


class Block(NamedTuple):
    """Some sums: `sums` has a row for each that was asked for. API keys are numbered by `KeyIds`."""

    minutes: Ints
    cells: Ints
    keys: Ints
    draws: Ints
    sums: Ints


class Entries(NamedTuple):
    """Histograms of one metric, one after the other: minute, cell and number of buckets of each, then the buckets."""

    metric: str
    minutes: Ints
    cells: Ints
    lengths: Ints
    buckets: Ints
    counts: Ints


class Rows(NamedTuple):
    """What the database returned; `ranges` says which minutes of it count."""

    fresh: Sequence[Any]
    packed: Sequence[Any]
    ranges: Sequence[windows.Range]


def fresh_sums(first: int, last: int, step: int, names: Sequence[str] = SUMS) -> Select[*tuple[Any, ...]]:
    """Return the query for sums of fresh minutes, in steps of so many minutes."""
    table = ActivityMinute
    start = (table.minute - table.minute % step).label("start")
    # PostgreSQL's sum of a bigint is numeric, which takes long to read; no sum comes near 63 bits.
    sums = (cast(func.sum(getattr(table, name)), BigInteger).label(name) for name in names)
    groups = (start, table.cell_id, table.key_id, table.draw)
    return select(*groups, *sums).where(table.minute.between(first, last)).group_by(*groups)


def packed_sums(ranges: Sequence[windows.Range]) -> Select[*tuple[Any, ...]]:
    """Return the query for packed sums."""
    table = ActivityPacked
    return select(table.span, table.minute, table.keys, table.data).where(windows.within(table, ranges))


def fresh_latencies(first: int, last: int, metrics: Sequence[Metric]) -> Select[*tuple[Any, ...]]:
    """Return the query for histograms of fresh minutes."""
    table = LatencyMinute
    query = select(table.metric, table.minute, table.cell_id, table.histogram)
    return query.where(table.minute.between(first, last), table.metric.in_(metrics))


def packed_latencies(ranges: Sequence[windows.Range], metrics: Sequence[Metric]) -> Select[*tuple[Any, ...]]:
    """Return the query for packed histograms."""
    table = LatencyPacked
    query = select(table.span, table.minute, table.metric, table.data)
    return query.where(windows.within(table, ranges), table.metric.in_(metrics))


async def read_sums(
    connection: AsyncConnection, first: int, last: int, *, step: int, finest: int = WEEK, names: Sequence[str] = SUMS
) -> Rows:
    """Read the sums of minutes `first` … `last`."""
    ranges = windows.ranges_of(first, last, finest)
    fresh = (await connection.execute(fresh_sums(first, last, step, names))).fetchall()
    return Rows(fresh, (await connection.execute(packed_sums(ranges))).fetchall(), ranges)


async def read_latencies(
    connection: AsyncConnection, first: int, last: int, metrics: Sequence[Metric], finest: int = WEEK
) -> Rows:
    """Read the histograms of minutes `first` … `last`, in portions: the event loop is never held for long."""
    ranges = windows.ranges_of(first, last, finest)
    fresh: list[Any] = []
    rows = await connection.stream(fresh_latencies(first, last, metrics))
    async for part in rows.partitions(500):
        fresh += part
        await asyncio.sleep(0)
    return Rows(fresh, (await connection.execute(packed_latencies(ranges, metrics))).fetchall(), ranges)


class KeyIds:
    """Numbers for ids of API keys, in the order in which they turned up."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def of(self, ids: Sequence[str]) -> Ints:
        """Return their numbers."""
        return np.array([self.numbers.setdefault(key, len(self.numbers)) for key in ids], dtype=np.int64)


def blocks(rows: Rows, keys: KeyIds, names: Sequence[str] = SUMS) -> Iterator[Block]:
    """Unpack sums; takes CPU time, so run it in a thread."""
    if rows.fresh:
        ids = keys.of([row[2] for row in rows.fresh])
        minutes, cells, draws, *fresh = np.array([(*row[:2], *row[3:]) for row in rows.fresh], dtype=np.int64).T
        yield Block(minutes, cells, ids, draws, np.stack(fresh))
    needed = [0, 1, 2, 3, *(4 + SUMS.index(name) for name in names)]
    for span, start, names_of_keys, data in rows.packed:
        offsets, cells, places, draws, *sums = unpack(data, needed)
        block = Block(start + offsets, cells, keys.of(names_of_keys)[places], draws, np.stack(sums))
        kept = windows.wanted(span, start, offsets, rows.ranges)
        yield block if kept is None else Block(*(part[..., kept] for part in block))


def entries(rows: Rows) -> Iterator[Entries]:
    """Unpack histograms; takes CPU time, so run it in a thread. Raises ValueError where one is damaged."""
    by_metric: dict[str, list[tuple[int, int, bytes]]] = defaultdict(list)
    for metric, minute, cell, data in rows.fresh:
        by_metric[metric].append((minute, cell, data))
    for metric, found in by_metric.items():
        places = np.array([row[:2] for row in found], dtype=np.int64)
        yield Entries(metric, places[:, 0], places[:, 1], *decode_entries([row[2] for row in found]))
    for span, start, metric, data in rows.packed:
        (offsets, cells), lengths, buckets, counts = unpack_histograms(data)
        kept = windows.wanted(span, start, offsets, rows.ranges)
        if kept is not None:
            inside = np.zeros(len(offsets), dtype=bool)
            inside[kept] = True
            each = np.repeat(inside, lengths)
            offsets, cells, lengths, buckets, counts = (
                offsets[kept], cells[kept], lengths[kept], buckets[each], counts[each],
            )  # fmt: skip
        yield Entries(metric, start + offsets, cells, lengths, buckets, counts)


def fold(parts: Iterable[Block], code_of: Callable[[Block], Ints], sums: int = len(SUMS)) -> tuple[Ints, Ints]:
    """Sum blocks of so many sums by a code of each row; return the codes in order and their sums."""
    held = [(np.zeros(0, dtype=np.int64), np.zeros((sums, 0), dtype=np.int64))]
    rows = 0
    for block in parts:
        held.append((code_of(block), block.sums))
        rows += len(block.cells)
        if rows > _ROWS_HELD:
            held, rows = [_summed(held)], 0
    return _summed(held)


def _summed(parts: Sequence[tuple[Ints, Ints]]) -> tuple[Ints, Ints]:
    return sum_by(np.concatenate([codes for codes, _ in parts]), np.concatenate([sums for _, sums in parts], axis=1))


def dense(parts: Iterable[Entries], groups: int, group_of: Callable[[Entries], Ints]) -> Ints:
    """Merge histograms into one row of buckets for each group; `group_of` numbers those of an `Entries`."""
    merged = np.zeros(groups * BUCKETS, dtype=np.int64)
    for part in parts:
        np.add.at(merged, np.repeat(group_of(part) * BUCKETS, part.lengths) + part.buckets, part.counts)
    return merged.reshape(groups, BUCKETS)


def histogram_of(row: Ints) -> LogHistogram:
    """Return a row of buckets as a histogram."""
    filled = np.flatnonzero(row)
    return histogram(filled, row[filled])


def histogram(buckets: Ints, counts: Ints) -> LogHistogram:
    """Return buckets and their counts as a histogram."""
    return LogHistogram(dict(zip(buckets.tolist(), counts.tolist(), strict=True)))
