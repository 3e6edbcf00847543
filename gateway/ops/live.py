"""Reports and page fragments for many viewers: what takes long to read is read seldom, once for all of them.

Called by `gateway/api/ops.py`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import msgspec

from gateway.ops.collect import OpsReader
from gateway.ops.model import Report
from gateway.ops.render import clock_time, to_live

_FRESH_S = 1.0
_COST = 120.0
"""A report stays fresh for so many times what it took: a page that is watched costs 1 % of a core at most …"""
_STALE_S = 60.0
"""… unless that would leave it older than this."""
_EVERY_S = 2.0
_WINDOWS_KEPT = 32
_LOOK_S = 0.25


@dataclass(slots=True)
class _Made:
    fresh_until: float
    report: Report
    fragment: str


class LiveReports:
    """What all viewers share."""

    def __init__(
        self, reader: OpsReader, *, every_s: float = _EVERY_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._reader = reader
        self._every_s = every_s
        self._clock = clock
        self._made: dict[float, _Made] = {}
        self._locks: dict[float, asyncio.Lock] = {}
        self._studies: dict[float, tuple[float, Report]] = {}
        self._studying = asyncio.Lock()
        self._series: dict[float, tuple[float, bytes]] = {}
        self._drawing = asyncio.Lock()

    async def report(self, since_s: float) -> Report:
        """Return the report of a window: a second old, or older where it takes long to read."""
        return (await self._get(since_s)).report

    async def study(self, since_s: float) -> Report:
        """Return the report of a window with its study; made one at a time, kept for a while after what it took."""
        async with self._studying:
            made, began = self._studies.get(since_s), self._clock()
            if made is None or began > made[0]:
                report = await self._reader.report(since_s, study=True)
                now = self._clock()
                if len(self._studies) >= _WINDOWS_KEPT:
                    self._studies.clear()
                self._studies[since_s] = made = (now + min(_COST * (now - began), _STALE_S), report)
            return made[1]

    async def series(self, since_s: float) -> bytes:
        """Return the charts of a window as JSON, one for all viewers. Raises StoreUnavailable."""
        async with self._drawing:
            made, began = self._series.get(since_s), self._clock()
            if made is None or began > made[0]:
                packed = msgspec.json.encode(await self._reader.series(since_s))
                now = self._clock()
                if len(self._series) >= _WINDOWS_KEPT:
                    self._series.clear()
                self._series[since_s] = made = (now + min(max(5.0, _COST * (now - began)), _STALE_S), packed)
            return made[1]

    async def _get(self, since_s: float) -> _Made:
        async with self._locks.setdefault(since_s, asyncio.Lock()):
            made, began = self._made.get(since_s), self._clock()
            if made is None or began > made.fresh_until:
                report = await self._reader.report(since_s)
                fragment = to_live(report)
                now = self._clock()
                if len(self._made) >= _WINDOWS_KEPT:
                    self._made.clear()
                    self._locks = {since: lock for since, lock in self._locks.items() if lock.locked()}
                fresh_s = min(max(_FRESH_S, _COST * (now - began)), _STALE_S)
                self._made[since_s] = made = _Made(now + fresh_s, report, fragment)
            return made

    async def events(self, since_s: float, ended: Callable[[], bool] = lambda: False) -> AsyncIterator[bytes]:
        """Yield server-sent events: `report` with the page's changing part when it changed, else a short `same`.

        Ends soon after `ended` says so: an open page must not hold up the server's exit.
        """
        shown, pauses = "", max(1, round(self._every_s / _LOOK_S))
        yield b"retry: 2000\n\n"
        while not ended():
            made = await self._get(since_s)
            head = f"id: {clock_time(made.report.generated_at)}\nevent: "
            if made.fragment == shown:
                yield f"{head}same\ndata:\n\n".encode()
            else:
                shown = made.fragment
                lines = "\n".join(f"data: {line}" for line in shown.splitlines())
                yield f"{head}report\n{lines}\n\n".encode()
            for _ in range(pauses):
                if ended():
                    return
                await asyncio.sleep(self._every_s / pauses)
