"""Live statistics of one gateway without Redis: the interface of `StatsStore`, in this process and lost with it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from gateway.stats.store import KEEP_MINUTES, Item
from gateway.types import CellKey


class MemoryStats:
    """Counters per minute and cell in memory; old minutes are dropped."""

    available = True
    detail = ""

    def __init__(self, *, keep_minutes: int = KEEP_MINUTES) -> None:
        self.keep_minutes = keep_minutes
        self._minutes: dict[int, dict[CellKey, dict[str, int]]] = {}
        self._sequences: dict[str, int] = {}

    async def add(self, items: Sequence[Item], *, writer: str = "", sequence: int = 0) -> bool:
        """Add increments; the same numbered call made again adds nothing."""
        if sequence:
            if sequence <= self._sequences.get(writer, 0):
                return False
            self._sequences[writer] = sequence
        oldest = int(time.time() // 60) - self.keep_minutes
        for minute in [minute for minute in self._minutes if minute <= oldest]:
            del self._minutes[minute]
        for minute, key, increments in items:
            if minute > oldest:
                counters = self._minutes.setdefault(minute, {}).setdefault(key, {})
                for name, increment in increments.items():
                    counters[name] = counters.get(name, 0) + increment
        return True

    async def read(self, since_minute: int, until_minute: int | None = None) -> list[Item]:
        """Return the totals of all cells, minute by minute, both ends included."""
        return [
            (minute, key, dict(counters))
            for minute, cells in sorted(self._minutes.items())
            if since_minute <= minute and (until_minute is None or minute <= until_minute)
            for key, counters in cells.items()
        ]

    async def share_load(self, gateway: str, load: Mapping[str, int]) -> dict[str, int]:
        """Return nothing: there is no other gateway."""
        del gateway, load
        return {}

    async def ping(self) -> None:
        """Always well."""

    async def aclose(self) -> None:
        """Nothing to close."""
