"""One request by its id, for the page's explorer. Part of `Database`."""

from __future__ import annotations

import time
from typing import Any

import msgspec
from sqlalchemy import select

from gateway.db.models import Request, RequestText
from gateway.db.records import clean
from gateway.db.transactions import Transactions
from gateway.db.types import utc


class Found(msgspec.Struct):
    """What is kept of a request, columns by name."""

    request: dict[str, Any]
    text: dict[str, Any] | None
    """`prompt` and `completion` (JSON), where a rule keeps them and they have not expired."""


class Explorer(Transactions):
    """The methods that `Database` inherits."""

    async def request(self, request_id: str) -> Found | None:
        """Return a request, None where none of that id is kept."""
        text = RequestText.__table__.c
        request_id = clean(request_id)
        kept = select(text.prompt, text.completion, text.expires_at, text.rule).where(
            text.request_id == request_id, text.expires_at > utc(time.time())
        )
        async with self._read() as connection:
            query = select(Request.__table__).where(Request.request_id == request_id)
            row = (await connection.execute(query)).mappings().first()
            if row is None:
                return None
            told = (await connection.execute(kept)).mappings().first()
        return Found(dict(row), dict(told) if told else None)

    async def latest_requests(self, limit: int = 20) -> list[dict[str, Any]]:
        """Return the newest requests, a few columns each, newest first."""
        names = ("request_id", "at", "task", "backend", "method", "k", "status", "state", "completion_tokens", "e2e_s")
        columns = [getattr(Request, name) for name in names]
        async with self._read() as connection:
            rows = await connection.execute(select(*columns).order_by(Request.at.desc()).limit(limit))
            return [dict(row) for row in rows.mappings()]
