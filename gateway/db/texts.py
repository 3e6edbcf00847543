"""Prompts and answers that a rule's `store` keeps: written by `gateway.texts`, read and deleted by operators.

Part of `Database`. Every row says when it expires; expired ones are never returned, and `Database.maintain` deletes
them in batches.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec
from sqlalchemy import ColumnElement, Insert, delete, select

from gateway.db.models import RequestText
from gateway.db.records import clean, insert_for
from gateway.db.transactions import Transactions
from gateway.db.types import utc

BATCH = 200
"""Rows deleted at once: each may be large."""


class StoredText(msgspec.Struct):
    """One request's text."""

    request_id: str
    at: datetime
    expires_at: datetime
    endpoint: str
    model: str
    key_id: str
    end_user: str
    """Keyed hash, as in the request's record."""
    task: str
    rule: str
    """The rule that says `store`."""
    policy: str
    status: int
    prompt: str
    """JSON: the messages, or the prompt of a completion."""
    completion: str
    """JSON: a list of choices, each with `content` and, where there were any, `reasoning_content` and `tool_calls`."""
    truncated: bool
    """Whether either is longer than what is kept."""


_COLUMNS = tuple(getattr(RequestText, name) for name in StoredText.__struct_fields__)


class StoredTexts(Transactions):
    """The methods that `Database` inherits."""

    async def insert_texts(self, texts: Sequence[StoredText]) -> None:
        """Keep texts; those whose request is there already change nothing."""
        values = [clean(msgspec.structs.asdict(each)) for each in texts]
        async with self._write() as connection:
            statement: Insert = insert_for(connection, RequestText).on_conflict_do_nothing()
            await connection.execute(statement, values)

    async def texts(
        self,
        since: float,
        *,
        task: str | None = None,
        rule: str | None = None,
        key_id: str | None = None,
        limit: int = 1000,
        now: float | None = None,
    ) -> list[StoredText]:
        """Return the newest texts since a Unix time that have not expired, oldest first."""
        wanted = [RequestText.at >= utc(since), RequestText.expires_at > utc(time.time() if now is None else now)]
        wanted += _equal(task=task, rule=rule, key_id=key_id)
        query = select(*_COLUMNS).where(*wanted).order_by(RequestText.at.desc(), RequestText.request_id).limit(limit)
        async with self._read(30.0) as connection:
            rows = (await connection.execute(query)).all()
        return [StoredText(*row) for row in reversed(rows)]

    async def forget_texts(
        self, *, actor: str, key_id: str | None = None, rule: str | None = None, request_id: str | None = None
    ) -> int:
        """Delete texts before their time: those of a key, a rule or a request; with none named, all. Audited.

        Returns how many there were.
        """
        wanted = _equal(key_id=key_id, rule=rule, request_id=request_id)
        deleted = 0
        while batch := await self._delete_texts(wanted):
            deleted += batch
        named = {"key": key_id, "rule": rule, "request": request_id}
        details = {name: value for name, value in named.items() if value is not None}
        await self.audit(actor, "texts.forget", "texts", {**details, "deleted": deleted})
        return deleted

    async def expire_texts(self, now: float | None = None) -> int:
        """Delete what is past its retention, in short transactions; return how many."""
        deleted = 0
        before = utc(time.time() if now is None else now)
        while batch := await self._delete_texts([RequestText.expires_at <= before]):
            deleted += batch
            if batch < BATCH:
                break
        return deleted

    async def _delete_texts(self, wanted: list[ColumnElement[bool]]) -> int:
        some = select(RequestText.request_id).where(*wanted).limit(BATCH)
        async with self._write() as connection:
            return (await connection.execute(delete(RequestText).where(RequestText.request_id.in_(some)))).rowcount


def _equal(**named: str | None) -> list[ColumnElement[bool]]:
    return [getattr(RequestText, name) == value for name, value in named.items() if value is not None]


def expiry(at: float, retention: float) -> datetime:
    """Return when a text of that age limit expires; retentions beyond the calendar end with it."""
    return datetime.fromtimestamp(min(at + retention, 253_402_300_799.0), UTC)
