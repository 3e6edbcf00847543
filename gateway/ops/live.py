"""Reports and page fragments for many viewers: each window is read once a second at most.

Called by `gateway/api/ops.py`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from gateway.ops.collect import OpsReader
from gateway.ops.model import Report
from gateway.ops.render import clock_time, to_live

_FRESH_S = 1.0
_EVERY_S = 2.0
_WINDOWS_KEPT = 32


@dataclass(slots=True)
class _Made:
    at: float
    report: Report
    fragment: str


class LiveReports:
    """What all viewers share."""

    def __init__(self, reader: OpsReader, *, every_s: float = _EVERY_S) -> None:
        self._reader = reader
        self._every_s = every_s
        self._made: dict[float, _Made] = {}
        self._locks: dict[float, asyncio.Lock] = {}

    async def report(self, since_s: float) -> Report:
        """Return the report of a window, at most a second old."""
        return (await self._get(since_s)).report

    async def _get(self, since_s: float) -> _Made:
        async with self._locks.setdefault(since_s, asyncio.Lock()):
            made = self._made.get(since_s)
            if made is None or time.monotonic() - made.at > _FRESH_S:
                report = await self._reader.report(since_s)
                if len(self._made) >= _WINDOWS_KEPT:
                    self._made.clear()
                self._made[since_s] = made = _Made(time.monotonic(), report, to_live(report))
            return made

    async def events(self, since_s: float) -> AsyncIterator[bytes]:
        """Yield server-sent events: `report` with the page's changing part when it changed, else a short `same`."""
        shown = ""
        yield b"retry: 2000\n\n"
        while True:
            made = await self._get(since_s)
            head = f"id: {clock_time(made.report.generated_at)}\nevent: "
            if made.fragment == shown:
                yield f"{head}same\ndata:\n\n".encode()
            else:
                shown = made.fragment
                lines = "\n".join(f"data: {line}" for line in shown.splitlines())
                yield f"{head}report\n{lines}\n\n".encode()
            await asyncio.sleep(self._every_s)
