"""The switch log and the policy versions: what changed, when, and the numbers that caused it. Part of `Database`."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import insert, select

from gateway.db.models import DecisionChange, PolicyActivation, PolicyVersion
from gateway.db.records import clean, insert_for
from gateway.db.transactions import Transactions
from gateway.db.types import utc


class Switch(msgspec.Struct):
    """One line of the switch log: which arm replaced which for a task, and why."""

    at: datetime
    backend: str
    task: str
    band: str
    """The load (and further bands) it holds for, as the snapshot names it; empty for all."""
    old_arm: str
    """Empty where nothing was decided before."""
    new_arm: str
    reason: str
    policy: str
    numbers: dict[str, Any]


class StoredPolicy(msgspec.Struct):
    """A policy's text, and when it was last activated by whom."""

    hash: str
    name: str
    text: str
    created_at: datetime
    activated_at: datetime | None = None
    actor: str = ""


class SwitchLog(Transactions):
    """The methods that `Database` inherits."""

    async def log_switch(self, switch: Switch) -> bool:
        """Append to the switch log; False where the last line of this task already says the same (another gateway)."""
        table = DecisionChange
        same_place = (table.backend == switch.backend, table.task == switch.task, table.band == switch.band)
        last = select(table.new_arm).where(*same_place).order_by(table.id.desc()).limit(1)
        async with self._write() as connection:
            if (await connection.execute(last)).scalar() == switch.new_arm:
                return False
            await connection.execute(insert(table), clean(msgspec.structs.asdict(switch)))
            return True

    async def switches(self, since: float, *, limit: int = 500) -> list[Switch]:
        """Return the newest lines of the switch log since a Unix time, newest first."""
        table = DecisionChange.__table__
        columns = [table.c[name] for name in Switch.__struct_fields__]
        query = select(*columns).where(table.c.at >= utc(since)).order_by(table.c.id.desc()).limit(limit)
        async with self._read() as connection:
            return [Switch(*row) for row in await connection.execute(query)]

    async def store_policy(self, hash: str, name: str, source: str, *, actor: str) -> None:
        """Keep a policy's text and note that it became active; noted once while it stays the active one."""
        now = utc(time.time())
        row = {"hash": hash, "name": clean(name), "text": clean(source), "created_at": now}
        last = select(PolicyActivation.hash).order_by(PolicyActivation.id.desc()).limit(1)
        async with self._write() as connection:
            await connection.execute(insert_for(connection, PolicyVersion).on_conflict_do_nothing(), row)
            if (await connection.execute(last)).scalar() != hash:
                activation = {"at": now, "hash": hash, "actor": clean(actor)}
                await connection.execute(insert(PolicyActivation), activation)

    async def policies(self, *, limit: int = 100) -> list[StoredPolicy]:
        """Return activations, newest first: the first is the active policy."""
        version, activation = PolicyVersion, PolicyActivation
        query = (
            select(version.hash, version.name, version.text, version.created_at, activation.at, activation.actor)
            .join(activation, activation.hash == version.hash)
            .order_by(activation.id.desc())
            .limit(limit)
        )
        async with self._read() as connection:
            return [StoredPolicy(*row) for row in await connection.execute(query)]
