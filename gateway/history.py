"""Latencies by cell, as the p99 guard reads them: those of the last day at the start, and everything since.

Called by `refresh.py`. The totals only ever grow, so that the guard may take differences between two moments. Minutes
are added when they are a few minutes old and no writer is late any more; what a spool brings back later than that is
seen after a restart only.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from gateway.db import Database
from gateway.histogram import LatencyCell, LogHistogram, Metric
from gateway.types import CellKey

PAST_S = 24 * 3600
"""How far back the start looks."""
_OPEN_MINUTES = 3
_METRICS: tuple[Metric, ...] = ("ttft", "tpot", "itl")
Key = tuple[CellKey, Metric]
Cells = dict[Key, LogHistogram]


class History:
    """Totals per cell and metric."""

    def __init__(self) -> None:
        self._closed: Cells = {}
        self._closed_until = 0
        """The first minute that is not in `_closed`."""
        self._open: dict[int, Cells] = {}
        self._first = 0

    async def read(self, database: Database) -> None:
        """Read what is new. Raises StoreUnavailable; then the next call reads it."""
        now = int(time.time() // 60)
        if not self._closed_until:
            self._first = self._closed_until = now - PAST_S // 60
        while self._closed_until < now - 60:  # hour by hour: a day at once would be hundreds of megabytes
            end = self._closed_until + 60
            for cells in (await self._span(database, self._closed_until, end - 1, 60)).values():
                _add(self._closed, cells.items())
            self._closed_until = end
        self._open = await self._span(database, self._closed_until, now + 1, 1)
        for minute in sorted(self._open):
            if minute < now - _OPEN_MINUTES:
                _add(self._closed, self._open.pop(minute).items())
        self._closed_until = max(self._closed_until, now - _OPEN_MINUTES)

    def cells(self) -> list[LatencyCell]:
        """Return the totals, as copies that never change."""
        totals = {key: LogHistogram(histogram.counts()) for key, histogram in self._closed.items()}
        for cells in self._open.values():
            _add(totals, cells.items())
        length = int(time.time() // 60) + 1 - self._first
        return [LatencyCell(key, metric, self._first, found, length) for (key, metric), found in totals.items()]

    async def _span(self, database: Database, first: int, last: int, resolution: int) -> dict[int, Cells]:
        spans: dict[int, Cells] = {}
        for cell in await database.p99_history(first * 60, last * 60, _METRICS, resolution_minutes=resolution):
            spans.setdefault(cell.minute, {})[cell.key, cell.metric] = cell.histogram
        return spans


def _add(totals: Cells, found: Iterable[tuple[Key, LogHistogram]]) -> None:
    for key, histogram in found:
        totals.setdefault(key, LogHistogram()).merge(histogram)
