"""Keeps what the decision reads current, in the background: statistics, p99 history, costs → one `Snapshot` in memory.

Started by `gateway.app`; read by `gateway.serve` (snapshot), `/readyz` (store states) and `gateway.ops`. A store that
is away leaves the last snapshot in place, marked stale; nothing here is ever awaited by a request.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from engine.messages import CostTable
from gateway.backends import Backend
from gateway.db import Database
from gateway.errors import BreakevenError
from gateway.histogram import LatencyCell
from gateway.history import History
from gateway.routing import Bucket, Snapshot, Thresholds, Tuning, build_snapshot, empty_snapshot
from gateway.stats import Statistics
from gateway.switches import SwitchWatch
from gateway.types import Arm
from gateway.window import Window

log = logging.getLogger(__name__)
STALE_AFTER_S = 3.0
"""Statistics that could not be read for so long are called stale."""
_HISTORY_EVERY_S = 10.0
_AGAIN_S = 2.0
"""A database that was away is asked again after this."""
_MAINTAIN_EVERY_S = 900.0
_REBUILD_AFTER_S = 5.0
_SHARE = 10
"""A job that takes long runs a tenth of the time at most, as long as that is once a second."""


class StoreState(msgspec.Struct):
    """One store as the refresher sees it."""

    ok: bool
    detail: str = ""
    """Why not."""
    age_s: float | None = None
    """Seconds since it last answered; None: never."""


class _Told(NamedTuple):
    """What the backends tell, by name."""

    costs: dict[str, CostTable]
    arms: dict[str, tuple[Arm, ...]]
    epochs: dict[str, str]


class Refresher:
    """One per gateway process."""

    def __init__(
        self,
        *,
        backends: Callable[[], Mapping[str, Backend]],
        store: Statistics | None = None,
        database: Database | None = None,
        policy: Callable[[], str] = str,
        thresholds: Callable[[], tuple[Thresholds, ...]] = tuple,
        tuning: Tuning | None = None,
        interval_s: float = 0.75,
        keep_requests_days: float = 30.0,
    ) -> None:
        self.snapshot: Snapshot = empty_snapshot(time.time(), stale=store is not None)
        """The newest one; replaced as a whole."""
        self._backends = backends
        self._store = store
        self._database = database
        self._thresholds = thresholds
        self._tuning = tuning or Tuning()
        self._interval_s = interval_s
        self._keep_requests_days = keep_requests_days
        self._window = Window(int(6 * self._tuning.half_life // 60))
        self._switches = SwitchWatch(policy)
        self._history: list[LatencyCell] = []
        self._past = History()
        self._inputs: object = None
        self._read_at: float | None = None
        self._store_error = ""
        self._asked_at: float | None = None
        self._database_error = ""
        self._tasks: list[asyncio.Task[None]] = []
        self._name = secrets.token_hex(8)

    async def start(self) -> None:
        """Begin; waits a second at most for the statistics that were there before. Never fails."""
        with contextlib.suppress(Exception):
            await asyncio.wait_for(self.refresh(), 1.0)
        jobs = [self._every(self._interval_s, self.refresh, "statistics")]
        jobs.append(self._every(self._interval_s, self.share_loads, "loads"))
        if self._database is not None:
            jobs.append(self._every(_AGAIN_S, self._history_if_due, "history"))
            jobs.append(self._every(1.0, self._log_switches, "switch log"))
            jobs.append(self._every(_MAINTAIN_EVERY_S, self._maintain, "maintenance", wait_first=True))
        self._tasks = [asyncio.create_task(job, name="refresher") for job in jobs]

    async def aclose(self) -> None:
        """Stop."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    def stats_state(self) -> dict[str, StoreState]:
        """Return the state of each configured store."""
        now, states = time.monotonic(), {}
        for name, used, error, at in (
            ("redis", self._store is not None, self._store_error, self._read_at),
            ("database", self._database is not None, self._database_error, self._asked_at),
        ):
            if used:
                age = None if at is None else round(now - at, 1)
                states[name] = StoreState(not error and at is not None, error or ("" if at else "not read yet"), age)
        return states

    async def refresh(self) -> None:
        """Read what is new in the statistics and make a snapshot of it."""
        if self._store is not None:
            try:
                changed = await self._window.read(self._store)
            except BreakevenError as error:
                self._store_error = str(error)
                self._mark_stale()
                return
            self._store_error, self._read_at = "", time.monotonic()
        else:
            changed = False
        await self._build(changed)

    def inputs(self) -> tuple[list[Bucket], dict[str, CostTable]]:
        """Return what the present snapshot was made of: counters and costs by backend."""
        return self._window.buckets(), self._told().costs

    async def seen_under(self, thresholds: tuple[Thresholds, ...]) -> Snapshot:
        """Return the snapshot with views for these thresholds, where it lacks one as a gateway starting now would."""
        if all(wanted in self.snapshot.views for wanted in thresholds):
            return self.snapshot
        return await self._made(self._told(), thresholds, now=time.time(), stale=self.snapshot.stale)

    async def _history_if_due(self) -> None:
        asked = self._asked_at
        if self._database_error or asked is None or time.monotonic() - asked >= _HISTORY_EVERY_S:
            await self.refresh_history()

    async def refresh_history(self) -> None:
        """Read the latencies that are new."""
        if self._database is None:
            return
        try:
            await self._past.read(self._database)
        except BreakevenError as error:
            if not self._database_error:
                log.warning("the database is away: %s", error)
            self._database_error = str(error)
            return
        self._database_error, self._asked_at = "", time.monotonic()
        self._history = self._past.cells()

    def _mark_stale(self) -> None:
        overdue = self._read_at is None or time.monotonic() - self._read_at > STALE_AFTER_S
        if overdue and not self.snapshot.stale:
            log.warning("statistics are stale: %s", self._store_error)
            self.snapshot = self.snapshot.copied(stale=True)

    async def _build(self, changed: bool) -> None:
        """Make a snapshot in a thread, unless nothing has changed and the last one is recent."""
        told, thresholds, now = self._told(), self._thresholds(), time.time()
        inputs = (told, id(self._history), thresholds)
        recent = now - self.snapshot.made_at < _REBUILD_AFTER_S and not self.snapshot.stale
        if recent and not changed and inputs == self._inputs:
            return
        previous = self.snapshot.copied()  # decisions add nodes meanwhile
        self.snapshot = await self._made(told, thresholds, now=now, previous=previous)
        self._inputs = inputs

    def _told(self) -> _Told:
        """Return what the backends tell now."""
        backends = self._backends()
        states = {name: backend.state() for name, backend in backends.items()}
        return _Told(
            {name: table for name, backend in backends.items() if (table := backend.costs()) is not None},
            {name: state.arms for name, state in states.items() if state.arms},
            {name: state.epoch for name, state in states.items() if state.epoch},
        )

    async def _made(
        self,
        told: _Told,
        thresholds: tuple[Thresholds, ...],
        *,
        now: float,
        stale: bool = False,
        previous: Snapshot | None = None,
    ) -> Snapshot:
        """Make a snapshot in a thread."""
        return await asyncio.to_thread(
            build_snapshot,
            self._window.buckets(),
            told.costs,
            now=now,
            stale=stale,
            history=self._history,
            previous=previous,
            arms=told.arms,
            epochs=told.epochs,
            tuning=self._tuning,
            thresholds=thresholds,
        )

    async def share_loads(self) -> None:
        """Tell the other gateways what is in flight at backends that tell no load themselves, and hear of theirs."""
        backends = self._backends()
        untold = {name: load for name, backend in backends.items() if (load := backend.untold_load()) is not None}
        others: dict[str, int] = {}
        try:
            if untold and self._store is not None:
                others = await self._store.share_load(self._name, untold)
        finally:
            for name in untold:
                backends[name].hear_load(others.get(name, 0))

    async def _log_switches(self) -> None:
        if self._database is not None and not self.snapshot.stale:
            await self._switches.look(self.snapshot, self._database)

    async def _maintain(self) -> None:
        if self._database is not None:
            deleted = await self._database.maintain(keep_requests_days=self._keep_requests_days)
            if deleted:
                log.info("deleted %d request rows older than %g days", deleted, self._keep_requests_days)

    async def _every(self, seconds: float, job: Callable[[], object], what: str, *, wait_first: bool = False) -> None:
        """Run a job for ever; its failures are logged once each and never end it."""
        last = ""
        while True:
            if wait_first:
                await asyncio.sleep(seconds)
            began = time.monotonic()
            try:
                await job()  # type: ignore[misc]  # every job is a coroutine function
                last = ""
            except Exception as error:
                if str(error) != last:
                    log.warning("%s: %s", what, error, exc_info=not isinstance(error, BreakevenError))
                last = str(error)
            if not wait_first:
                took = time.monotonic() - began
                await asyncio.sleep(max(seconds, min(1.0, _SHARE * took) - took))
