"""Policy versions and their activations: which text was in force when, through whom and why. Part of `Database`.

Activations are only ever added; the newest one is in force on every gateway. `activate_policy` compares and adds in one
transaction, so that of two operators who change the same version one is told.
"""

from __future__ import annotations

import time
from datetime import datetime

import msgspec
from sqlalchemy import insert, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.db.models import AuditEntry, PolicyActivation, PolicyVersion
from gateway.db.records import clean, insert_for
from gateway.db.transactions import Transactions
from gateway.db.types import utc

_COLUMNS = (
    PolicyActivation.id,
    PolicyActivation.at,
    PolicyActivation.hash,
    PolicyVersion.name,
    PolicyActivation.actor,
    PolicyActivation.reason,
    PolicyActivation.origin,
)


class Activation(msgspec.Struct):
    """One line of a policy's history."""

    id: int
    at: datetime
    hash: str
    name: str
    actor: str
    reason: str
    origin: str
    """`file`, `api` or `rollback`."""


class PolicyVersions(Transactions):
    """The methods that `Database` inherits."""

    async def activate_policy(
        self,
        hash: str,
        name: str,
        source: str,
        *,
        actor: str,
        origin: str,
        reason: str = "",
        expected: str | None = None,
    ) -> Activation | None:
        """Keep a text and put it into force; return its activation (the present one where it is in force already).

        `expected` is the hash that the caller saw in force: where another one is, nothing changes and None is returned.
        """
        now = utc(time.time())
        version = {"hash": hash, "name": name, "text": source, "created_at": now}
        async with self._write() as connection:
            if connection.dialect.name == "postgresql":
                await connection.execute(text("LOCK TABLE policy_activations IN SHARE ROW EXCLUSIVE MODE"))
            last = await _latest(connection)
            if expected is not None and (last is None or last.hash != expected):
                return None
            if last is not None and last.hash == hash:
                return last
            await connection.execute(insert_for(connection, PolicyVersion).on_conflict_do_nothing(), clean(version))
            activation = {"at": now, "hash": hash, "actor": actor, "reason": reason, "origin": origin}
            await connection.execute(insert(PolicyActivation), clean(activation))
            details = {"reason": reason, "previous": last.hash if last else None, "name": name}
            entry = {"at": now, "actor": actor, "action": f"policy.{origin}", "target": hash, "details": details}
            await connection.execute(insert(AuditEntry), clean(entry))
            return await _latest(connection)

    async def latest_activation(self, origin: str | None = None) -> Activation | None:
        """Return the activation in force, or the newest one of that origin."""
        async with self._read() as connection:
            return await _latest(connection, origin)

    async def policy_history(self, *, limit: int = 50) -> list[Activation]:
        """Return activations, newest first."""
        query = select(*_COLUMNS).join(PolicyVersion, PolicyVersion.hash == PolicyActivation.hash)
        async with self._read() as connection:
            rows = await connection.execute(query.order_by(PolicyActivation.id.desc()).limit(limit))
            return [Activation(*row) for row in rows]

    async def policy_text(self, hash: str) -> tuple[str, str, str] | None:
        """Return (hash, name, text) of a version by its hash or an unambiguous beginning of it, else None."""
        table = PolicyVersion
        query = (
            select(table.hash, table.name, table.text)
            .where(table.hash.startswith(clean(hash), autoescape=True))
            .limit(2)
        )
        async with self._read() as connection:
            rows = (await connection.execute(query)).all()
        return (rows[0][0], rows[0][1], rows[0][2]) if len(rows) == 1 else None


async def _latest(connection: AsyncConnection, origin: str | None = None) -> Activation | None:
    query = select(*_COLUMNS).join(PolicyVersion, PolicyVersion.hash == PolicyActivation.hash)
    if origin is not None:
        query = query.where(PolicyActivation.origin == origin)
    row = (await connection.execute(query.order_by(PolicyActivation.id.desc()).limit(1))).first()
    return Activation(*row) if row else None
