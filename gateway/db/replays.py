"""Recorded requests with their decode steps, for `breakeven policy simulate`. Part of `Database`."""

from __future__ import annotations

from datetime import datetime

import msgspec
from sqlalchemy import select

from gateway.db.models import Request
from gateway.db.transactions import Transactions
from gateway.db.types import utc


class Replay(msgspec.Struct):
    """One recorded request, as far as a policy can look at it, with what its steps drafted and emitted."""

    request_id: str
    at: datetime
    endpoint: str
    model: str
    key_id: str
    task: str
    stream: bool
    temperature: float
    load: int
    prompt_tokens: int | None
    conversation: str
    backend: str
    method: str
    k: int
    emitted: list[int]
    drafted: list[int]


_COLUMNS = tuple(getattr(Request, name) for name in Replay.__struct_fields__[:-2])


class Replays(Transactions):
    """The method that `Database` inherits."""

    async def replays(self, since: float, *, limit: int = 20_000) -> list[Replay]:
        """Return the newest requests since a Unix time that were answered in full, oldest first."""
        wanted = (Request.at >= utc(since), Request.status == 200, Request.fallback.is_(False), Request.loop.is_(False))
        query = select(*_COLUMNS, Request.spec).where(*wanted).order_by(Request.at.desc()).limit(limit)
        async with self._read(60.0) as connection:
            rows = (await connection.execute(query)).all()
        names = Replay.__struct_fields__[:-2]
        found = []
        for *known, spec in reversed(rows):
            steps = {name: (spec or {}).get(f"step_{name}") or [] for name in ("emitted", "drafted")}
            found.append(msgspec.convert(dict(zip(names, known, strict=True)) | steps, Replay))
        return found
