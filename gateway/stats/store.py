"""Live statistics in Redis: one hash of integer counters per cell and minute. Written by the recorder, read off path.

`breakeven:cells:<minute>:<cell>` has a field per counter, only ever changed by HINCRBY: several gateways add to the
same numbers and the sum is exact. `breakeven:cells:<minute>` holds a version of each cell, changed by every addition:
who reads again fetches only what has changed. Discounting by age happens when the numbers are read. Hashes expire.
`breakeven:writer:<writer>` holds the last sequence number that a recorder has applied, so that a replay counts once.
`breakeven:load` has each gateway's requests in flight at backends that tell no load themselves.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from importlib import resources

import msgspec

from gateway.counted import NONE, Counters, taken_apart
from gateway.stats.breaker import Breaker
from gateway.stats.connection import connect, guarded
from gateway.types import CellKey

Item = tuple[int, CellKey, Mapping[str, int]]
"""Minute (Unix time // 60), cell, increments (or, when read, totals)."""

PREFIX = "breakeven:cells:"
WRITER_PREFIX = "breakeven:writer:"
KEEP_MINUTES = 4 * 60
"""Minute hashes live this long: longer than the window that decisions look back on (six half-lives, three hours)."""
KEEP_WRITER_S = 30 * 24 * 3600
"""A spool that is older than this may be counted twice."""
_CELLS_AT_ONCE = 200
"""Cells that one script fetches: Redis answers nobody else meanwhile."""
_MINUTE = b"*"
"""The minute's own version in its index."""
LOAD = "breakeven:load"
LOAD_MS = 5000
"""A gateway's word on its requests in flight counts for so long: one that is gone has none."""
_load = msgspec.json.Decoder(dict[str, int])


class _Minute:
    """What was read of one minute."""

    __slots__ = ("cells", "version")

    def __init__(self) -> None:
        self.version = b""
        self.cells: dict[bytes, tuple[bytes, CellKey, Counters]] = {}


class StatsStore:
    """Counters shared by all gateways. Every call answers or raises StoreUnavailable within `timeout_s` a step."""

    def __init__(self, url: str, *, timeout_s: float = 1.0, keep_minutes: int = KEEP_MINUTES) -> None:
        self.url = url
        self.keep_minutes = keep_minutes
        self._client = connect(url, timeout_s=timeout_s, connections=8)
        self._breaker = Breaker()
        self._add = self._client.register_script(_source("add.lua"))
        self._fetch = self._client.register_script(_source("read.lua"))
        self._share = self._client.register_script(_source("load.lua"))
        self._minutes: dict[int, _Minute] = {}

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
        for minute, cells in sorted(_merged(items).items()):
            if minute > oldest and cells:
                keys.append(f"{PREFIX}{minute}")
                arguments += [(minute + self.keep_minutes) * 60, len(cells)]
                for cell, fields in cells.items():
                    keys.append(f"{PREFIX}{minute}:{cell}")
                    arguments += [cell, len(fields)]
                    for field, increment in fields.items():
                        arguments += [field, increment]
        with guarded(self._breaker):
            added, failed = await self._add(keys=keys, args=arguments)
        if failed:
            raise OverflowError(f"{failed} of the increments do not fit a 64-bit counter and were left out")
        return bool(added)

    async def read(self, since_minute: int, until_minute: int | None = None) -> list[Item]:
        """Return the totals of all cells, minute by minute, both ends included (default: up to now).

        Totals that have not changed since they were last read come back as the same objects: leave them as they are.
        Raises StoreUnavailable.
        """
        now = int(time.time() // 60)
        last = now + 1 if until_minute is None else until_minute
        minutes = range(max(since_minute, last - self.keep_minutes - 1), last + 1)
        for minute in [minute for minute in self._minutes if minute < now - self.keep_minutes]:
            del self._minutes[minute]
        with guarded(self._breaker):
            for minute, version in zip(minutes, await self._versions(minutes), strict=True):
                if version is None:
                    self._minutes.pop(minute, None)
                elif minute not in self._minutes or self._minutes[minute].version != version:
                    await self._renew(minute, version)
        known = ((minute, self._minutes[minute]) for minute in minutes if minute in self._minutes)
        return [(minute, key, counters) for minute, held in known for _, key, counters in held.cells.values()]

    async def share_load(self, gateway: str, load: Mapping[str, int]) -> dict[str, int]:
        """Tell a gateway's requests in flight by backend; return those that the others have told lately, summed.

        Raises StoreUnavailable.
        """
        with guarded(self._breaker):
            told = await self._share(keys=[LOAD], args=[gateway, msgspec.json.encode(load), LOAD_MS])
        total: dict[str, int] = {}
        for name, count in (pair for each in told for pair in _load.decode(each).items()):
            total[name] = total.get(name, 0) + count
        return total

    async def ping(self) -> None:
        """Ask for a sign of life. Raises StoreUnavailable."""
        with guarded(self._breaker):
            await self._client.ping()

    async def aclose(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def _versions(self, minutes: Sequence[int]) -> list[bytes | None]:
        async with self._client.pipeline(transaction=False) as pipe:
            for minute in minutes:
                pipe.hget(f"{PREFIX}{minute}", _MINUTE.decode())
            found: list[bytes | None] = await pipe.execute()
        return found

    async def _renew(self, minute: int, version: bytes) -> None:
        """Fetch the cells of a minute that have changed. What has arrived stays, should this be broken off."""
        held = self._minutes.setdefault(minute, _Minute())
        held.version = b""
        index: dict[bytes, bytes] = await self._client.hgetall(f"{PREFIX}{minute}")  # type: ignore[assignment]  # bytes
        for gone in held.cells.keys() - index.keys():
            del held.cells[gone]
        index.pop(_MINUTE, None)
        known = {cell: at for cell, (at, _, _) in held.cells.items()}
        changed = [cell for cell, at in index.items() if known.get(cell) != at and b"\n" not in cell]
        for first in range(0, len(changed), _CELLS_AT_ONCE):
            cells = changed[first : first + _CELLS_AT_ONCE]
            for cell, counters in zip(cells, await self._counters(minute, cells), strict=True):
                key = held.cells[cell][1] if cell in held.cells else _key_of(cell)
                if key is not None and counters:
                    held.cells[cell] = (index[cell], key, counters)
        held.version = version

    async def _counters(self, minute: int, cells: Sequence[bytes]) -> list[Counters]:
        values, shapes, *names = await self._fetch(keys=[f"{PREFIX}{minute}:"], args=[b"\n".join(cells)])
        try:
            found = taken_apart(values, shapes, names)
        except ValueError:  # a field that no gateway has written
            found = []
        if len(found) == len(cells):
            return found
        return [NONE] if len(cells) == 1 else [(await self._counters(minute, [cell]))[0] for cell in cells]


def _key_of(cell: bytes) -> CellKey | None:
    try:
        return CellKey.decode(cell.decode("utf-8", "replace"))
    except ValueError:
        return None


def _source(name: str) -> str:
    return resources.files("gateway.stats").joinpath(name).read_text("utf-8")


def _merged(items: Sequence[Item]) -> dict[int, dict[str, dict[str, int]]]:
    """Sum the increments per minute, cell and field."""
    minutes: dict[int, dict[str, dict[str, int]]] = {}
    for minute, key, counters in items:
        fields = minutes.setdefault(minute, {}).setdefault(key.encode(), {})
        for counter, increment in counters.items():
            if increment:
                fields[counter] = fields.get(counter, 0) + increment
    return minutes
