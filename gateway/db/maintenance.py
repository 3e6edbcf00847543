"""Keeps the database small and its pages fast: raw rows expire, complete hours are packed and so are days.

The p99 guard reads the latest day, so that hours need not tell apart what only the guard does: their latencies are kept
by task, arm and load, their sums without the temperature.

Called by `Database.maintain`. Each step is a short transaction of bounded size: it never holds a lock for long and
never reads a table into memory. Several gateways may run it at once: a lock lets one work and the others do nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace
from sqlalchemy import Select, delete, func, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.db import packing
from gateway.db.models import (
    CELL_COLUMNS,
    DAY,
    HOUR,
    MINUTE,
    PIECE,
    WEEK,
    ActivityMinute,
    ActivityPacked,
    Cell,
    LatencyMinute,
    LatencyPacked,
    Request,
)
from gateway.db.packed import Ints
from gateway.db.rollups import SUMS, cell_ids
from gateway.db.types import utc
from gateway.histogram import METRICS, decode_entries
from gateway.types import CellKey

BATCH = 1000
LATE = 10
"""Minutes after its end at which an hour is rolled up."""
MINUTES_KEPT = 48 * 60
"""Minutes for which told minutes are kept beside the hours that tell them."""
HOURS_KEPT = 90 * 24 * 60
"""Minutes for which hours are kept; days and weeks stay for good."""
ANY = "*"
"""Stands in the cell of an hour or a day for what it no longer tells: temperature; in latencies context, epoch too."""
_LONG = (HOUR, DAY, WEEK)
_LOCK = 0x627265616B  # any number of our own


async def take_lock(connection: AsyncConnection) -> bool:
    """Return whether this transaction may do maintenance; the lock ends with it. SQLite has one writer anyway."""
    if connection.dialect.name != "postgresql":
        return True
    return bool((await connection.execute(select(func.pg_try_advisory_xact_lock(_LOCK)))).scalar())


async def lock(connection: AsyncConnection) -> None:
    """Wait for the lock that `take_lock` tries: whoever changes packed rows holds it."""
    if connection.dialect.name == "postgresql":
        await connection.execute(select(func.pg_advisory_xact_lock(_LOCK)))


async def hold_off(connection: AsyncConnection) -> None:
    """Let nobody change packed rows until this transaction ends: what comes late would be lost, or counted twice."""
    if connection.dialect.name == "postgresql":
        await connection.execute(select(func.pg_advisory_xact_lock_shared(_LOCK)))


async def wait_for_lock(connection: AsyncConnection) -> None:
    """Let only one process migrate at a time."""
    if connection.dialect.name == "postgresql":
        await connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": _LOCK + 1})


async def delete_old_requests(connection: AsyncConnection, before: float) -> int:
    """Delete at most `BATCH` raw rows that arrived before the Unix time `before`; return how many."""
    old = select(Request.request_id).where(Request.at < utc(before)).order_by(Request.at).limit(BATCH)
    return (await connection.execute(delete(Request).where(Request.request_id.in_(old)))).rowcount


async def roll_hour(connection: AsyncConnection, *, before: int) -> bool:
    """Pack the oldest hour of fresh minutes that ended before minute `before`; False: none is left.

    In one transaction the hour, its day, its week and the minutes that are kept beside them get the same and the fresh
    rows go: a longer span always tells all of its told minutes. What a spool brings later is fresh again, and added.
    """
    for table in (ActivityMinute, LatencyMinute):
        oldest = (await connection.execute(select(func.min(table.minute)))).scalar()
        if oldest is None:
            continue
        start = oldest - oldest % HOUR
        if start + HOUR > before:
            continue
        if table is ActivityMinute:
            await _roll_activity(connection, start)
        else:
            await _roll_latency(connection, start)
        await connection.execute(delete(table).where(table.minute.between(start, start + HOUR - 1)))
        return True
    return False


async def drop_packed(connection: AsyncConnection, *, span: int, before: int) -> bool:
    """Delete the oldest rows of a span that lie before minute `before`: longer spans tell them. False: none is left."""
    end = before - PIECE + 1 if span == MINUTE else before
    for table in (ActivityPacked, LatencyPacked):
        oldest = (await connection.execute(select(func.min(table.minute)).where(table.span == span))).scalar()
        if oldest is not None and oldest < end:
            await connection.execute(delete(table).where(table.span == span, table.minute == oldest))
            return True
    return False


async def _roll_activity(connection: AsyncConnection, start: int) -> None:
    """Add an hour's sums, piece by piece: all of it at once may be hundreds of megabytes."""
    table = ActivityMinute
    columns = (table.key_id, table.minute, table.cell_id, table.draw, *(getattr(table, name) for name in SUMS))
    for piece in range(start, start + HOUR, PIECE):
        mine = table.minute.between(piece, piece + PIECE - 1)
        rows = (await connection.execute(select(*columns).where(mine))).fetchall()
        if not rows:
            continue
        coarse = await _coarse_cells(connection, select(table.cell_id).where(mine), ("temperature",))
        keys = sorted({row[0] for row in rows})
        places = {key: at for at, key in enumerate(keys)}
        numbers = np.array([(places[key], *others) for key, *others in rows], dtype=np.int64)
        key, minutes, cells, *rest = numbers.T
        await packing.add_sums(connection, MINUTE, piece, keys, [minutes - piece, cells, key, *rest])
        for span in _LONG:
            told = [0 * minutes, coarse(cells), key, *rest]
            await packing.add_sums(connection, span, start - start % span, keys, told)


async def _roll_latency(connection: AsyncConnection, start: int) -> None:
    """Add an hour's histograms, piece by piece and one metric after the other."""
    table = LatencyMinute
    columns = (table.minute, table.cell_id, table.histogram)
    for piece in range(start, start + HOUR, PIECE):
        mine = table.minute.between(piece, piece + PIECE - 1)
        coarse = await _coarse_cells(connection, select(table.cell_id).where(mine), ("epoch", "temperature", "context"))
        for metric in METRICS:
            rows = (await connection.execute(select(*columns).where(mine, table.metric == metric))).fetchall()
            if not rows:
                continue
            minutes, cells = np.array([row[:2] for row in rows], dtype=np.int64).T
            lengths, buckets, counts = decode_entries([row[2] for row in rows])
            for span in (MINUTE, *_LONG):
                place = (span, piece if span == MINUTE else start - start % span, metric)
                named = (minutes - piece, cells) if span == MINUTE else (0 * minutes, coarse(cells))
                keys = [np.repeat(part, lengths) for part in named]
                await packing.add_histograms(connection, place, keys, buckets, counts)


async def _coarse_cells(
    connection: AsyncConnection, there: Select[Any], dropped: Sequence[str]
) -> Callable[[Ints], Ints]:
    """Return what turns cells into those that stand for them in hours and days: without what nobody asks of these."""
    cells = [getattr(Cell, name) for name in CELL_COLUMNS]
    found = (await connection.execute(select(Cell.id, *cells).where(Cell.id.in_(there)).order_by(Cell.id))).all()
    keys = [replace(CellKey(*row[1:]), **dict.fromkeys(dropped, ANY)) for row in found]
    numbers = await cell_ids(connection, keys)
    fine = np.array([row[0] for row in found], dtype=np.int64)
    coarse = np.array([numbers[key] for key in keys], dtype=np.int64)
    return lambda given: coarse[np.searchsorted(fine, given)]
