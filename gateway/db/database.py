"""The database as the rest of the gateway sees it: one method per question, each one transaction with a time limit.

Called by the recorder (records), the refresher (history, switch log), the access layer (keys), `gateway.ops` (reads)
and `cli/`. SQLite and PostgreSQL give the same answers. Every method raises StoreUnavailable where the database does
not answer, and StoreRefused where it will never take a value.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial

import msgspec
from sqlalchemy import insert, select, text, update

from gateway.db import maintenance, rollups
from gateway.db.audits import Audits
from gateway.db.engine import open_engine, transaction
from gateway.db.explorer import Explorer
from gateway.db.keys import StoredKey
from gateway.db.log import SwitchLog
from gateway.db.migrate import pending, upgrade
from gateway.db.models import HOUR, MINUTE, ApiKey
from gateway.db.policies import PolicyVersions
from gateway.db.reads import Reads
from gateway.db.records import clean, insert_new
from gateway.db.replays import Replays
from gateway.db.subjects import Subjects
from gateway.db.texts import StoredTexts
from gateway.db.transactions import note
from gateway.types import CellKey, RequestRecord

KEEP_REQUESTS_DAYS = 30
_KNOWN_CELLS = 50_000


class Database(SwitchLog, PolicyVersions, Replays, StoredTexts, Audits, Reads, Subjects, Explorer):
    """Opens nothing before first use; one per process."""

    def __init__(self, url: str, *, timeout_s: float = 5.0) -> None:
        super().__init__(url, timeout_s=timeout_s)
        self._cells: dict[CellKey, int] = {}

    @property
    def url(self) -> str:
        """Where it is, without the password."""
        return self._url.render_as_string(hide_password=True)

    async def migrate(self) -> None:
        """Create or upgrade the schema; safe to call from several processes at once."""
        if not await self.pending_migrations():
            return
        engine = open_engine(self._url, timeout_s=max(60.0, self._timeout_s))
        try:
            async with transaction(engine, write=True, timeout_s=600.0) as connection:
                await maintenance.wait_for_lock(connection)
                await connection.run_sync(upgrade)
        finally:
            await engine.dispose()

    async def pending_migrations(self) -> list[str]:
        """Return the revisions that the database lacks, oldest first."""
        async with self._read() as connection:
            return await connection.run_sync(pending)

    async def ping(self) -> None:
        """Ask for a sign of life."""
        async with self._read() as connection:
            await connection.execute(text("SELECT 1"))

    async def aclose(self) -> None:
        """Close all connections."""
        await self._engine.dispose()

    async def insert_records(self, records: Sequence[RequestRecord], *, writer: str = "local") -> int:
        """Store records and add them to the roll-ups; one whose request_id is there already changes nothing.

        `writer` names the calling process: its latency rows are its own. Returns how many were new.
        """
        cells = {record.request_id: rollups.cell_of(record) for record in records}
        unknown = set(cells.values()) - self._cells.keys()
        if unknown:
            async with self._write() as connection:
                numbers = await rollups.cell_ids(connection, unknown)
            if len(self._cells) > _KNOWN_CELLS:
                self._cells.clear()
            self._cells |= numbers
        hour = time.time() // 3600
        late = any(record.at // 3600 < hour for record in records)
        async with self._write() as connection:
            if late:  # their hour may be packed at any time
                await maintenance.hold_off(connection)
            fresh = [(record, cells[record.request_id]) for record in await insert_new(connection, records)]
            if fresh:
                await rollups.add_activity(connection, rollups.activity(fresh), self._cells)
                await rollups.merge_latencies(connection, rollups.latencies(fresh), self._cells, writer=writer)
        return len(fresh)

    async def maintain(self, *, now: float | None = None, keep_requests_days: float = KEEP_REQUESTS_DAYS) -> int:
        """Delete raw rows and texts past their retention and pack the roll-ups of complete hours, in short steps.

        Returns how many raw rows were deleted.
        """
        moment = time.time() if now is None else now
        await self.expire_texts(moment)
        deleted = 0
        while True:
            async with self._write() as connection:
                if not await maintenance.take_lock(connection):
                    return deleted
                batch = await maintenance.delete_old_requests(connection, moment - keep_requests_days * 86400)
            deleted += batch
            if batch < maintenance.BATCH:
                break
        minute = int(moment // 60)
        for step, before in (
            (maintenance.roll_hour, minute - maintenance.LATE),
            (partial(maintenance.drop_packed, span=MINUTE), minute - maintenance.MINUTES_KEPT),
            (partial(maintenance.drop_packed, span=HOUR), minute - maintenance.HOURS_KEPT),
        ):
            more = True
            while more:
                async with self._write(30.0) as connection:
                    more = await maintenance.take_lock(connection) and await step(connection, before=before)
        return deleted

    async def create_key(self, key: StoredKey, *, actor: str = "cli") -> None:
        """Store a key made by `new_key`."""
        async with self._write() as connection:
            await connection.execute(insert(ApiKey), clean(msgspec.structs.asdict(key)))
            await note(connection, actor, "key.create", key.key_id, {"name": key.name, "role": key.role})

    async def list_keys(self) -> list[StoredKey]:
        """Return all keys, revoked ones included, oldest first."""
        columns = [ApiKey.__table__.c[name] for name in StoredKey.__struct_fields__]
        async with self._read() as connection:
            rows = await connection.execute(select(*columns).order_by(ApiKey.created_at, ApiKey.key_id))
            return [StoredKey(*row) for row in rows]

    async def load_keys(self) -> list[StoredKey]:
        """Return the keys that are valid now."""
        return [key for key in await self.list_keys() if key.revoked_at is None]

    async def revoke_key(self, key_id: str, *, actor: str = "cli") -> bool:
        """Revoke a key; False where it is unknown or already revoked."""
        async with self._write() as connection:
            result = await connection.execute(
                update(ApiKey)
                .where(ApiKey.key_id == key_id, ApiKey.revoked_at.is_(None))
                .values(revoked_at=datetime.now(UTC))
            )
            if result.rowcount:
                await note(connection, actor, "key.revoke", key_id, {})
            return bool(result.rowcount)
