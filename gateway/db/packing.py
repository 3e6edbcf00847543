"""Adds to packed rows of the roll-ups: reads, merges, writes. For `maintenance` and `subjects`, within a transaction.

Only one process adds at a time: `maintenance` holds a lock, and whoever else adds takes it too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.db.models import ActivityPacked, LatencyPacked
from gateway.db.packed import Ints, code_of, code_parts, pack, pack_histograms, sum_by, unpack, unpack_histograms
from gateway.db.records import insert_for

Place = tuple[int, int, str]
"""Span, first minute and metric: the key of a row of histograms."""


async def add_sums(
    connection: AsyncConnection, span: int, minute: int, keys: Sequence[str], columns: Sequence[Ints]
) -> None:
    """Add sums (offset, cell, place in `keys`, draw, then `SUMS`) to the row at (span, minute)."""
    table = ActivityPacked
    mine = (table.span == span, table.minute == minute)
    known = (await connection.execute(select(table.keys, table.data).where(*mine))).first()
    names: list[str] = list(known.keys) if known else []
    names += sorted(set(keys) - set(names))
    place = np.array([names.index(key) for key in keys], dtype=np.int64)
    columns = [*columns[:2], place[columns[2]], *columns[3:]]
    data = await asyncio.to_thread(_sums, known.data if known else None, columns)
    await put_sums(connection, span, minute, names, data)


async def put_sums(connection: AsyncConnection, span: int, minute: int, keys: Sequence[str], data: bytes) -> None:
    """Write a row of sums, whatever was there."""
    insert = insert_for(connection, ActivityPacked).values(span=span, minute=minute, keys=list(keys), data=data)
    newer = {"keys": insert.excluded["keys"], "data": insert.excluded.data}
    await connection.execute(insert.on_conflict_do_update(index_elements=["span", "minute"], set_=newer))


async def add_histograms(
    connection: AsyncConnection, place: Place, keys: Sequence[Ints], buckets: Ints, counts: Ints
) -> None:
    """Add entries of histograms, keyed by (offset, cell), to the row at (span, minute, metric)."""
    table, (span, minute, metric) = LatencyPacked, place
    mine = (table.span == span, table.minute == minute, table.metric == metric)
    known = (await connection.execute(select(table.data).where(*mine))).scalar()
    data = await asyncio.to_thread(_histograms, known, keys, buckets, counts)
    insert = insert_for(connection, table).values(span=span, minute=minute, metric=metric, data=data)
    newer = {"data": insert.excluded.data}
    await connection.execute(insert.on_conflict_do_update(index_elements=["span", "minute", "metric"], set_=newer))


def _sums(known: bytes | None, columns: Sequence[Ints]) -> bytes:
    if known is not None:
        columns = [np.concatenate(pair) for pair in zip(unpack(known), columns, strict=True)]
    *place, draws = columns[:4]
    names, which = np.unique(np.stack(place), axis=1, return_inverse=True)
    codes, summed = sum_by(code_of(which.ravel(), draws), np.stack(columns[4:]))
    at, drawn = code_parts(codes)
    return pack([*names[:, at], drawn, *summed])


def _histograms(known: bytes | None, keys: Sequence[Ints], buckets: Ints, counts: Ints) -> bytes:
    if known is not None:
        old, lengths, *entries = unpack_histograms(known)
        keys = [np.concatenate((np.repeat(its, lengths), ours)) for its, ours in zip(old, keys, strict=True)]
        buckets, counts = (np.concatenate(pair) for pair in zip(entries, (buckets, counts), strict=True))
    return pack_histograms(keys, buckets, counts)
