"""Keeps the database small and its pages fast: raw rows expire, complete hours get a row of their own and so do days.

The p99 guard reads the latest day, so that hours need not tell apart what only the guard does: their latencies are kept
by task, arm and load, their sums without the temperature. A tenth of the rows remains, and pages read them faster.

Called by `Database.maintain`. Each step is a short transaction of bounded size: it never holds a lock for long and
never reads a table into memory. Several gateways may run it at once: a lock lets one work and the others do nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TypeVar

from msgspec.structs import replace
from sqlalchemy import BigInteger, ColumnElement, and_, column, delete, func, literal, select, text, update, values
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.orm import aliased

from gateway.db.models import CELL_COLUMNS, DAY, HOUR, MINUTE, TOLD, ActivityRollup, Cell, LatencyRollup, Request
from gateway.db.records import insert_for
from gateway.db.rollups import SUMS, cell_ids
from gateway.db.types import utc
from gateway.histogram import LogHistogram
from gateway.types import CellKey

T = TypeVar("T")

BATCH = 1000
LATE = 10
"""Minutes after its end at which an hour is rolled up."""
MINUTE_ROWS_KEPT = 48 * 60
"""Minutes for which minute rows are kept beside the hour rows that tell them."""
HOUR_ROWS_KEPT = 90 * 24 * 60
"""Minutes for which hour rows are kept; day rows stay for good."""
ANY = "*"
"""Stands in a compacted row's cell for what it no longer tells: temperature; for latencies context and epoch too."""
COMPACTED = "compacted"
"""The writer of merged latency rows."""
_LOCK = 0x627265616B  # any number of our own


async def take_lock(connection: AsyncConnection) -> bool:
    """Return whether this transaction may do maintenance; the lock ends with it. SQLite has one writer anyway."""
    if connection.dialect.name != "postgresql":
        return True
    return bool((await connection.execute(select(func.pg_try_advisory_xact_lock(_LOCK)))).scalar())


async def wait_for_lock(connection: AsyncConnection) -> None:
    """Let only one process migrate at a time."""
    if connection.dialect.name == "postgresql":
        await connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": _LOCK + 1})


async def delete_old_requests(connection: AsyncConnection, before: float) -> int:
    """Delete at most `BATCH` raw rows that arrived before the Unix time `before`; return how many."""
    old = select(Request.request_id).where(Request.at < utc(before)).order_by(Request.at).limit(BATCH)
    return (await connection.execute(delete(Request).where(Request.request_id.in_(old)))).rowcount


async def roll_hour(connection: AsyncConnection, *, before: int) -> bool:
    """Add the oldest hour of fresh minutes that ended before minute `before` to hour and day; False: none is left.

    In one transaction the hour row and the day row get the same and the minutes are marked as told: an hour or day row
    always tells all of its told minutes. What a spool brings later is fresh again and added in the same way.
    """
    for table in (ActivityRollup, LatencyRollup):
        oldest = (await connection.execute(select(func.min(table.minute)).where(table.span == MINUTE))).scalar()
        if oldest is None:
            continue
        start = oldest - oldest % HOUR
        if start + HOUR > before:
            continue
        mine = (table.span == MINUTE, table.minute.between(start, start + HOUR - 1))
        for span in (HOUR, DAY):
            if table is ActivityRollup:
                await _add_activity(connection, mine, span, start - start % span)
            else:
                await _add_latency(connection, mine, span, start - start % span)
        if table is ActivityRollup:
            await _tell_activity(connection, mine)
        else:
            await _tell_latency(connection, mine)
        await connection.execute(delete(table).where(*mine))
        return True
    return False


async def drop_hour(connection: AsyncConnection, *, span: int, before: int) -> bool:
    """Delete an hour of rows of a span that began before minute `before`: longer spans tell it. False: none is left."""
    for table in (ActivityRollup, LatencyRollup):
        oldest = (await connection.execute(select(func.min(table.minute)).where(table.span == span))).scalar()
        if oldest is not None and oldest < before:
            end = min(before, oldest - oldest % HOUR + HOUR) - 1
            await connection.execute(delete(table).where(table.span == span, table.minute.between(oldest, end)))
            return True
    return False


async def _tell_activity(connection: AsyncConnection, mine: Sequence[ColumnElement[bool]]) -> None:
    """Mark minutes as told, adding to those of the same minute that were told before."""
    table = ActivityRollup
    names = ["span", *(column.name for column in table.__table__.columns if column.name != "span")]
    told = select(literal(TOLD), *(getattr(table, name) for name in names[1:])).where(*mine)
    insert = insert_for(connection, table).from_select(names, told)
    added = {name: getattr(table, name) + insert.excluded[name] for name in SUMS}
    keys = ("span", "minute", "cell_id", "key_id", "state")
    await connection.execute(insert.on_conflict_do_update(index_elements=keys, set_=added))


async def _tell_latency(connection: AsyncConnection, mine: Sequence[ColumnElement[bool]]) -> None:
    """Mark minutes as told; where the same minute was told before (a spool came back late), histograms merge here."""
    table, old = LatencyRollup, aliased(LatencyRollup)
    names = ("minute", "cell_id", "metric", "writer")
    same = and_(old.span == TOLD, *(getattr(old, name) == getattr(table, name) for name in names))
    columns = [getattr(table, name) for name in names]
    late = select(*columns, table.histogram, old.histogram).join(old, same).where(*mine)
    for *key, new, told in (await connection.execute(late)).all():
        merged = LogHistogram.merge_encoded((new, told))
        place = [getattr(table, name) == value for name, value in zip(names, key, strict=True)]
        await connection.execute(delete(table).where(table.span == TOLD, *place))
        changed = {"count": merged.count, "histogram": merged.encode()}
        await connection.execute(update(table).where(table.span == MINUTE, *place).values(changed))
    rows = select(literal(TOLD), *columns, table.count, table.histogram).where(*mine)
    all_names = ["span", *names, "count", "histogram"]
    await connection.execute(insert_for(connection, table).from_select(all_names, rows))


async def _add_activity(
    connection: AsyncConnection, mine: Sequence[ColumnElement[bool]], span: int, start: int
) -> None:
    """Sum in the database, adding to the row that an earlier run may have made."""
    table = ActivityRollup
    coarse = await _coarse_cells(connection, table, mine, ("temperature",))
    for chunk in _chunks(list(coarse.items())):
        place = values(column("fine", BigInteger), column("coarse", BigInteger), name="places").data(chunk).cte()
        groups = (place.c.coarse, table.key_id, table.state)
        summed = (
            select(literal(span), literal(start), *groups, *(func.sum(getattr(table, name)) for name in SUMS))
            .join(place, place.c.fine == table.cell_id)
            .where(*mine)
            .group_by(*groups)
        )
        names = ["span", "minute", "cell_id", "key_id", "state", *SUMS]
        insert = insert_for(connection, table).from_select(names, summed)
        added = {name: getattr(table, name) + insert.excluded[name] for name in SUMS}
        keys = ("span", "minute", "cell_id", "key_id", "state")
        await connection.execute(insert.on_conflict_do_update(index_elements=keys, set_=added))


async def _add_latency(connection: AsyncConnection, mine: Sequence[ColumnElement[bool]], span: int, start: int) -> None:
    """Merge histograms here, with the row that an earlier run may have made."""
    table = LatencyRollup
    coarse = await _coarse_cells(connection, table, mine, ("epoch", "temperature", "context"))
    there = (table.span == span, table.minute == start, table.writer == COMPACTED)
    grouped: dict[tuple[int, str], list[bytes]] = defaultdict(list)
    for where in (mine, there):
        for cell_id, metric, packed in await connection.execute(
            select(table.cell_id, table.metric, table.histogram).where(*where)
        ):
            grouped[coarse.get(cell_id, cell_id), metric].append(packed)
    merged = {key: LogHistogram.merge_encoded(blobs) for key, blobs in grouped.items()}
    rows = [
        {"span": span, "minute": start, "cell_id": cell_id, "metric": metric, "writer": COMPACTED,
         "count": histogram.count, "histogram": histogram.encode()}
        for (cell_id, metric), histogram in merged.items()
    ]  # fmt: skip
    insert = insert_for(connection, table)
    newer = {"count": insert.excluded["count"], "histogram": insert.excluded.histogram}
    keys = ("span", "minute", "cell_id", "metric", "writer")
    for chunk in _chunks(rows):
        await connection.execute(insert.on_conflict_do_update(index_elements=keys, set_=newer), chunk)


async def _coarse_cells(
    connection: AsyncConnection,
    table: type[ActivityRollup | LatencyRollup],
    mine: Sequence[ColumnElement[bool]],
    dropped: Sequence[str],
) -> dict[int, int]:
    """Return cell → the cell that stands for it once minutes are gone: without what nobody asks of older rows."""
    cells = [getattr(Cell, name) for name in CELL_COLUMNS]
    there = select(table.cell_id).where(*mine).distinct()
    found = (await connection.execute(select(Cell.id, *cells).where(Cell.id.in_(there)))).all()
    keys = {row[0]: replace(CellKey(*row[1:]), **dict.fromkeys(dropped, ANY)) for row in found}
    numbers = await cell_ids(connection, keys.values())
    return {number: numbers[key] for number, key in keys.items()}


def _chunks(rows: list[T]) -> Iterator[list[T]]:
    """Cut into pieces that fit into one statement."""
    for first in range(0, len(rows), BATCH):
        yield rows[first : first + BATCH]
