"""Notices when the preferred arm of a kind of request changes, and writes it down with its numbers. By `refresh.py`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime

import msgspec

from gateway.db import Database, Switch
from gateway.routing import Snapshot, TaskSummary, summarize
from gateway.types import DEFAULT_TASKS

_WAITING = 1000
Place = tuple[str, str, str]
"""Backend, task, band."""


class SwitchWatch:
    """Remembers the last arm of each place; lines wait in memory while the database is away."""

    def __init__(self, policy: Callable[[], str]) -> None:
        self._policy = policy
        self._arms: dict[Place, str] = {}
        self._waiting: deque[Switch] = deque(maxlen=_WAITING)
        self._seen_at = -1.0

    async def look(self, snapshot: Snapshot, database: Database) -> None:
        """Compare with the last snapshot and write what changed. Raises StoreUnavailable; nothing is forgotten then."""
        if snapshot.made_at != self._seen_at:
            self._seen_at = snapshot.made_at
            self._waiting.extend(self._changes(snapshot))
        while self._waiting:
            await database.log_switch(self._waiting[0])
            self._waiting.popleft()

    def _changes(self, snapshot: Snapshot) -> list[Switch]:
        changes = []
        for row in summarize(snapshot, DEFAULT_TASKS):
            place = (row.backend, row.task, f"temperature {row.temperature}, context {row.context}, load {row.load}")
            before = self._arms.get(place, "")
            if row.arm == before or row.state == "stale" or (row.state == "no_data" and not before):
                continue
            self._arms[place] = row.arm
            changes.append(self._line(row, place, before))
        return changes

    def _line(self, row: TaskSummary, place: Place, before: str) -> Switch:
        compared = {arm.arm: msgspec.to_builtins(arm) for arm in row.arms if arm.arm in (row.arm, before)}
        numbers = {"requests": row.requests, "plain_s": row.plain_s, "state": row.state, "arms": compared}
        at = datetime.now(UTC)
        return Switch(at, row.backend, row.task, place[2], before, row.arm, row.reason, self._policy(), numbers)
