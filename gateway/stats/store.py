"""Live statistics in Redis: one hash of integer counters per minute. Written by the recorder, read by the refresher.

`breakeven:stats:<minute>` has a field `<cell>#<counter>` per counter, only ever changed by HINCRBY: several gateways
add to the same numbers and the sum is exact. Discounting by age happens when the numbers are read. Hashes expire.
`breakeven:writer:<writer>` holds the last sequence number that a recorder has applied, so that a replay counts once.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from importlib import resources

from gateway.stats.breaker import Breaker
from gateway.stats.connection import connect, guarded
from gateway.types import CellKey

Item = tuple[int, CellKey, dict[str, int]]
"""Minute (Unix time // 60), cell, increments (or, when read, totals)."""

PREFIX = "breakeven:stats:"
WRITER_PREFIX = "breakeven:writer:"
KEEP_MINUTES = 4 * 60
"""Minute hashes live this long: longer than the window that decisions look back on (six half-lives, three hours)."""
KEEP_WRITER_S = 30 * 24 * 3600
"""A spool that is older than this may be counted twice."""
_INTERNED = 200_000
_FOREIGN = -1
_MANY = 3000


class StatsStore:
    """Counters shared by all gateways. Every call answers or raises StoreUnavailable within `timeout_s`."""

    def __init__(self, url: str, *, timeout_s: float = 1.0, keep_minutes: int = KEEP_MINUTES) -> None:
        self.url = url
        self.keep_minutes = keep_minutes
        self._client = connect(url, timeout_s=timeout_s, connections=8)
        self._breaker = Breaker()
        self._add = self._client.register_script(_source("add.lua"))
        self._fields: dict[bytes, tuple[int, str]] = {}
        self._cells: list[CellKey] = []
        self._numbers: dict[str, int] = {}

    @property
    def available(self) -> bool:
        """Whether the last call was answered."""
        return self._breaker.closed

    @property
    def detail(self) -> str:
        """Why it is not available."""
        return self._breaker.reason

    async def add(self, items: Sequence[Item], *, writer: str = "", sequence: int = 0) -> bool:
        """Add increments atomically; minutes that have expired meanwhile are left out.

        With a `writer` and its ascending `sequence` the same call made again adds nothing. Returns whether it was
        added. Raises StoreUnavailable; OverflowError (once) where a counter would leave 64 bits.
        """
        keys: list[str] = [WRITER_PREFIX + (writer or "none")]
        arguments: list[str | int] = [sequence, KEEP_WRITER_S]
        oldest = int(time.time() // 60) - self.keep_minutes
        for minute, fields in sorted(_merged(items).items()):
            if minute > oldest and fields:
                keys.append(f"{PREFIX}{minute}")
                arguments += [(minute + self.keep_minutes) * 60, len(fields)]
                for field, increment in fields.items():
                    arguments += [field, increment]
        with guarded(self._breaker):
            added, failed = await self._add(keys=keys, args=arguments)
        if failed:
            raise OverflowError(f"{failed} of the increments do not fit a 64-bit counter and were left out")
        return bool(added)

    async def read(self, since_minute: int, until_minute: int | None = None) -> list[Item]:
        """Return the totals of all cells, minute by minute, both ends included (default: up to now).

        Raises StoreUnavailable.
        """
        last = int(time.time() // 60) + 1 if until_minute is None else until_minute
        minutes = range(max(since_minute, last - self.keep_minutes - 1), last + 1)
        with guarded(self._breaker):
            async with self._client.pipeline(transaction=False) as pipe:
                for minute in minutes:
                    pipe.hgetall(f"{PREFIX}{minute}")
                replies = await pipe.execute()
        if sum(map(len, replies)) > _MANY:  # tens of milliseconds, in which requests must go on
            return await asyncio.to_thread(self._all_items, minutes, replies)
        return self._all_items(minutes, replies)

    async def ping(self) -> None:
        """Ask for a sign of life. Raises StoreUnavailable."""
        with guarded(self._breaker):
            await self._client.ping()

    async def aclose(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    def _all_items(self, minutes: Sequence[int], replies: list[dict[bytes, bytes]]) -> list[Item]:
        return [item for minute, reply in zip(minutes, replies, strict=True) for item in self._items(minute, reply)]

    def _items(self, minute: int, reply: dict[bytes, bytes]) -> list[Item]:
        """Group one minute's fields by cell; foreign fields are ignored."""
        if len(self._fields) > _INTERNED:
            self._fields.clear()
            self._cells.clear()
            self._numbers.clear()
        cells: dict[int, dict[str, int]] = {}
        for field, value in reply.items():
            number, counter = self._fields.get(field) or self._learn(field)
            counters = cells.get(number)
            if counters is None:
                cells[number] = counters = {}
            counters[counter] = int(value)
        cells.pop(_FOREIGN, None)
        return [(minute, self._cells[number], counters) for number, counters in cells.items()]

    def _learn(self, field: bytes) -> tuple[int, str]:
        """Remember which cell and counter a field belongs to: the same fields are read again and again."""
        cell, mark, counter = field.decode("utf-8", "replace").rpartition("#")
        try:
            number = self._numbers.get(cell) if mark else _FOREIGN
            if number is None:
                self._cells.append(CellKey.decode(cell))
                self._numbers[cell] = number = len(self._cells) - 1
        except ValueError:
            number = _FOREIGN
        known = (number, sys.intern(counter))
        self._fields[field] = known
        return known


def _source(name: str) -> str:
    return resources.files("gateway.stats").joinpath(name).read_text("utf-8")


def _merged(items: Sequence[Item]) -> dict[int, dict[str, int]]:
    """Sum the increments per minute and field."""
    minutes: dict[int, dict[str, int]] = {}
    for minute, key, counters in items:
        fields = minutes.setdefault(minute, {})
        cell = key.encode()
        for counter, increment in counters.items():
            if increment:
                field = f"{cell}#{counter}"
                fields[field] = fields.get(field, 0) + increment
    return minutes
