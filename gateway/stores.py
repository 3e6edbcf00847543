"""Redis, the database and what writes to them: made by `create_app`, started and closed by its lifespan.

None of it is a condition for serving: what cannot be reached is told in `/readyz` and tried again in the background.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

import msgspec

from gateway.courier import Courier
from gateway.db import Database
from gateway.errors import BreakevenError
from gateway.recorder import Recorder
from gateway.settings import Settings
from gateway.stats import LimitState, MemoryStats, RateLimiter, Statistics, StatsStore
from gateway.stats.limits import LocalBuckets
from gateway.texts import TextKeeper
from gateway.types import Identity

log = logging.getLogger(__name__)
_PATIENCE_S = 5.0
_AGAIN_S = 2.0


class MemoryLimiter:
    """Limits per key where no Redis is configured: each gateway process counts alone."""

    def __init__(self) -> None:
        self._buckets = LocalBuckets()

    async def check(self, identity: Identity, tokens: int) -> LimitState:
        """Take one request and a number of tokens."""
        return self._buckets.take(identity, tokens)

    def settle(self, identity: Identity, reserved: int, used: int) -> None:
        """Correct a reservation."""
        self._buckets.correct(identity, used - reserved)


class Stores:
    """The database, the live statistics, the limiter and the recorder of one gateway."""

    def __init__(self, settings: Settings) -> None:
        redis = settings.stores.redis_url
        settings.server.data_dir.mkdir(parents=True, exist_ok=True)
        self.database = Database(settings.database_url)
        self.stats: Statistics = StatsStore(redis) if redis else MemoryStats()
        self.limiter: RateLimiter | MemoryLimiter = (
            RateLimiter(redis, timeout_s=settings.stores.redis_timeout_s) if redis else MemoryLimiter()
        )
        self.courier = Courier(redis=redis, database=settings.database_url)
        self.recorder = Recorder(
            settings.server.data_dir / "spool", store=self.stats, database=self.database, courier=self.courier
        )
        self.texts = TextKeeper(self.database)
        self.fault = ""
        """Why the database's schema is not up to date; empty once it is."""
        self._migrating: asyncio.Task[None] | None = None
        self._tried = asyncio.Event()

    async def start(self) -> None:
        """Bring the schema up to date, waiting a few seconds at most, and begin to record."""
        self._migrating = asyncio.create_task(self._migrate(), name="migrate")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._tried.wait(), _PATIENCE_S)
        await self.recorder.start()
        await self.texts.start()

    async def _migrate(self) -> None:
        """Try until it succeeds."""
        while True:
            try:
                await self.database.migrate()
            except BreakevenError as error:
                if not self.fault:
                    log.warning("the database cannot be used yet, records are kept on disk: %s", error)
                self.fault = str(error)
                self._tried.set()
                await asyncio.sleep(_AGAIN_S)
            else:
                self.fault = ""
                self._tried.set()
                return

    def state(self) -> dict[str, Any]:
        """Return what `/readyz` tells of the stores."""
        state: dict[str, Any] = {
            "recorder": msgspec.to_builtins(self.recorder.state()),
            "texts": msgspec.to_builtins(self.texts.state()),
        }
        if self.fault:
            state["schema"] = {"ok": False, "detail": self.fault}
        if isinstance(self.limiter, RateLimiter):
            why = "" if self.limiter.available else "Redis does not answer: each gateway limits alone"
            state["limits"] = {"ok": not why, "detail": why}
        return state

    async def aclose(self) -> None:
        """Write out what is queued, then close all connections."""
        if self._migrating is not None:
            self._migrating.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._migrating
        await asyncio.gather(self.recorder.aclose(), self.texts.aclose())
        await self.courier.aclose()
        if isinstance(self.limiter, RateLimiter):
            await self.limiter.aclose()
        await self.stats.aclose()
        await self.database.aclose()
