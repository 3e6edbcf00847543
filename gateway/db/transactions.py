"""What every part of `Database` needs: transactions with a time limit, and the audit log. Base of all its parts."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.db.engine import open_engine, parse_url, transaction
from gateway.db.models import AuditEntry
from gateway.db.records import clean


class Transactions:
    """An engine that opens nothing before first use."""

    def __init__(self, url: str, *, timeout_s: float = 5.0) -> None:
        self._url = parse_url(url)
        self._timeout_s = timeout_s
        self._engine = open_engine(self._url, timeout_s=timeout_s)

    def _read(self, timeout_s: float | None = None) -> AbstractAsyncContextManager[AsyncConnection]:
        return transaction(self._engine, write=False, timeout_s=timeout_s or self._timeout_s)

    def _write(self, timeout_s: float | None = None) -> AbstractAsyncContextManager[AsyncConnection]:
        return transaction(self._engine, write=True, timeout_s=timeout_s or 2 * self._timeout_s)

    async def audit(self, actor: str, action: str, target: str, details: dict[str, Any] | None = None) -> None:
        """Write who changed what; never a secret."""
        async with self._write() as connection:
            await note(connection, actor, action, target, details or {})


async def note(connection: AsyncConnection, actor: str, action: str, target: str, details: dict[str, Any]) -> None:
    """Write who changed what, in the transaction that changes it."""
    row = {"at": datetime.now(UTC), "actor": actor, "action": action, "target": target, "details": details}
    await connection.execute(insert(AuditEntry), clean(row))
