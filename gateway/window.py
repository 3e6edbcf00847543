"""The window of statistics that the decision looks back on, kept in memory and read piecemeal. Called by `refresh.py`.

The present and the last minute are read every time; older minutes hardly change (only when a spool is replayed), so one
of them is read again each time, in turn. All but the newest two are summed in blocks: ten minutes long within the last
hour, half an hour before. Fewer buckets make a cheaper snapshot, and a block's discount is that of its middle.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from itertools import chain

from gateway.routing import Bucket
from gateway.stats import Statistics
from gateway.types import CellKey

_SHORT, _LONG = 10, 30
"""Lengths of blocks, minutes."""
_LONG_AFTER = 60
_FIRST_S = 0.3
"""Seconds that one read spends at most on minutes that have never been read."""
Cells = dict[CellKey, Mapping[str, int]]


class Window:
    """Counters per minute over the last `minutes`."""

    def __init__(self, minutes: int) -> None:
        self._length = minutes
        self._minutes: dict[int, Cells] = {}
        self._blocks: dict[tuple[int, int], list[Bucket]] = {}
        self._turn = 0
        self._reach: int | None = None
        """The oldest minute read so far, until the whole window has been."""

    async def read(self, store: Statistics) -> bool:
        """Read what may be new; return whether anything was. Raises StoreUnavailable.

        At first the newest minutes, then as many older ones as a moment allows: a large fleet's whole window takes
        seconds, and decisions need not wait for it.
        """
        now, began = int(time.time() // 60), time.monotonic()
        changed = self._take(now - 1, now + 1, await store.read(now - 1, now + 1))
        if self._reach is None:
            self._reach = now - 1
        if self._reach > now - self._length:
            while self._reach > now - self._length and time.monotonic() - began < _FIRST_S:
                oldest = max(now - self._length, self._reach - _SHORT)
                changed |= self._take(oldest, self._reach - 1, await store.read(oldest, self._reach - 1))
                self._reach = oldest
            return changed
        self._turn = self._turn % self._length + 1
        old = now - 1 - self._turn
        changed |= self._take(old, old, await store.read(old, old))
        for minute in [minute for minute in self._minutes if minute < now - self._length]:
            del self._minutes[minute]
        return changed

    def buckets(self) -> list[Bucket]:
        """Return the window, oldest first: blocks dated at their middle, then the newest two minutes as they are."""
        now = int(time.time() // 60)
        ranges = self._ranges(now)
        self._blocks = {span: found for span, found in self._blocks.items() if span in ranges}
        newest = (
            Bucket(minute, key, counters)
            for minute in range(now - 1, now + 2)
            for key, counters in self._minutes.get(minute, {}).items()
        )
        return [*chain.from_iterable(self._block(first, last) for first, last in ranges), *newest]

    def _ranges(self, now: int) -> list[tuple[int, int]]:
        """Return the blocks, each from its first to its last minute; all but the last have ends that stay."""
        ranges = []
        first = (now - self._length) // _LONG * _LONG
        while first < now - 1:
            length = _LONG if first + _LONG <= now - _LONG_AFTER else _SHORT
            last = min(first + length, now - 1) - 1
            ranges.append((first, last))
            first = last + 1
        return ranges

    def _take(self, first: int, last: int, items: Iterable[tuple[int, CellKey, Mapping[str, int]]]) -> bool:
        """Replace minutes `first` … `last`; return whether they differ from before."""
        fresh: dict[int, Cells] = {}
        for minute, key, counters in items:
            fresh.setdefault(minute, {})[key] = counters
        changed = False
        for minute in range(first, last + 1):
            cells = fresh.get(minute)
            if cells != self._minutes.get(minute):
                changed = True
                self._blocks = {span: b for span, b in self._blocks.items() if not span[0] <= minute <= span[1]}
                if cells is None:
                    del self._minutes[minute]
                else:
                    self._minutes[minute] = cells
        return changed

    def _block(self, first: int, last: int) -> list[Bucket]:
        found = self._blocks.get((first, last))
        if found is None:
            sums: dict[CellKey, dict[str, int]] = {}
            for minute in range(first, last + 1):
                for key, counters in self._minutes.get(minute, {}).items():
                    into = sums.setdefault(key, {})
                    for name, value in counters.items():
                        into[name] = into.get(name, 0) + value
            middle = (first + last + 1) // 2
            found = self._blocks[first, last] = [Bucket(middle, key, counters) for key, counters in sums.items()]
        return found
