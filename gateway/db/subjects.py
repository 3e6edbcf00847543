"""One application's or one end user's records: read out and erased. Part of `Database`; for `breakeven data`.

What is kept of a request without its prompt (`requests`), prompts and answers that rules keep (`request_texts`) and
findings of audits go row by row. Roll-ups know no end user; an application's are added to those of nobody (`erased`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, String, Table, cast, delete, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.db import maintenance, packing
from gateway.db.models import ActivityMinute, ActivityPacked, AuditFinding, Base, Request, RequestText
from gateway.db.packed import unpack
from gateway.db.records import insert_for
from gateway.db.rollups import SUMS
from gateway.db.transactions import Transactions

ERASED = "erased"
"""The key under which the sums of erased applications go on counting."""
_PAGE = 500
_PACKED = 50
"""Packed rows that one transaction moves."""


class Subject(msgspec.Struct, frozen=True):
    """Whose records: an application's key id, or the keyed hash of an end user. Exactly one is given."""

    key_id: str = ""
    end_user: str = ""


class Erased(msgspec.Struct):
    """How many rows are gone."""

    requests: int = 0
    texts: int = 0
    rollups: int = 0


class Subjects(Transactions):
    """The methods that `Database` inherits."""

    async def records_of(self, subject: Subject) -> AsyncIterator[dict[str, Any]]:
        """Yield every request and text of a subject as a row with its `kind`, oldest first, page by page."""
        kinds: tuple[tuple[str, type[Base]], ...] = (("request", Request), ("text", RequestText))
        for kind, model in kinds:
            columns, after = _table(model).c, None
            while True:
                query = (
                    select(*columns).where(_is(model, subject)).order_by(columns.at, columns.request_id).limit(_PAGE)
                )
                if after is not None:
                    query = query.where(_later(model, *after))
                query = query.order_by(columns.at, columns.request_id)
                async with self._read(30.0) as connection:
                    rows = (await connection.execute(query)).mappings().all()
                for row in rows:
                    yield {"kind": kind, **row}
                if len(rows) < _PAGE:
                    break
                after = (rows[-1]["at"], rows[-1]["request_id"])

    async def erase(self, subject: Subject, *, actor: str) -> Erased:
        """Delete a subject's records in short transactions; noted in the audit log without naming an end user."""
        gone = Erased()
        while batch := await self._erase_some(RequestText, subject):
            gone.texts += batch
            await asyncio.sleep(0)
        while batch := await self._erase_some(Request, subject):
            gone.requests += batch
            await asyncio.sleep(0)
        if subject.key_id and subject.key_id != ERASED:  # those are nobody's already
            gone.rollups = await self._disown(subject.key_id)
        target = f"key {subject.key_id}" if subject.key_id else "an end user"
        await self.audit(actor, "data.erase", target, msgspec.to_builtins(gone))
        return gone

    async def _erase_some(self, model: type[Base], subject: Subject) -> int:
        table = _table(model)
        some = select(table.c.request_id).where(_is(model, subject)).limit(_PAGE)
        async with self._write() as connection:
            ids = list((await connection.execute(some)).scalars())
            if ids:
                await connection.execute(delete(AuditFinding).where(AuditFinding.request_id.in_(ids)))
                await connection.execute(delete(table).where(table.c.request_id.in_(ids)))
        return len(ids)

    async def _disown(self, key_id: str) -> int:
        """Add an application's roll-ups to those of nobody, an hour at a time; return how many rows."""
        moved = 0
        for move in (_move_minutes, _move_packed):
            while True:
                async with self._write(30.0) as connection:
                    await maintenance.lock(connection)
                    some = await move(connection, key_id)
                if not some:
                    break
                moved += some
        return moved


async def _move_minutes(connection: AsyncConnection, key_id: str) -> int:
    """Move up to an hour of fresh minutes; 0: none is left."""
    table = ActivityMinute
    oldest = select(func.min(table.minute)).where(table.key_id == key_id)
    first = (await connection.execute(oldest)).scalar()
    if first is None:
        return 0
    mine = (table.key_id == key_id, table.minute.between(first, first + 59))
    names = ("minute", "cell_id", "draw", *SUMS)
    taken = delete(table).where(*mine).returning(*(getattr(table, name) for name in names))
    rows = [{"key_id": ERASED, **dict(zip(names, row, strict=True))} for row in await connection.execute(taken)]
    insert = insert_for(connection, table)
    added = {name: getattr(table, name) + insert.excluded[name] for name in SUMS}
    keys = ("minute", "cell_id", "key_id", "draw")
    if rows:
        await connection.execute(insert.on_conflict_do_update(index_elements=keys, set_=added), rows)
    return len(rows)


async def _move_packed(connection: AsyncConnection, key_id: str) -> int:
    """Move an application's sums in some packed rows; 0: none is left."""
    table = ActivityPacked
    named = cast(table.keys, String).contains(key_id, autoescape=True)
    some = select(table.span, table.minute, table.keys, table.data).where(named).limit(_PACKED)
    found = [row for row in (await connection.execute(some)).all() if key_id in row[2]]
    for span, minute, keys, data in found:
        named_anew = [ERASED if key == key_id else key for key in keys]
        await connection.execute(delete(table).where(table.span == span, table.minute == minute))
        await packing.add_sums(connection, span, minute, named_anew, unpack(data))
    return len(found)


def _table(model: type[Base]) -> Table:
    table = model.__table__
    if not isinstance(table, Table):
        raise AssertionError(f"{model.__name__} is no table")
    return table


def _is(model: type[Base], subject: Subject) -> ColumnElement[bool]:
    """Return the condition. Raises ValueError unless exactly one is named: nothing is ever erased by an empty name."""
    if bool(subject.key_id) == bool(subject.end_user):
        raise ValueError("name either a key or an end user")
    column, value = ("key_id", subject.key_id) if subject.key_id else ("end_user", subject.end_user)
    return _table(model).c[column] == value


def _later(model: type[Base], at: Any, request_id: str) -> ColumnElement[bool]:  # noqa: ANN401  # as read
    columns = _table(model).c
    later: ColumnElement[bool] = (columns.at > at) | ((columns.at == at) & (columns.request_id > request_id))
    return later
