"""Finished requests → Redis counters and database rows, off the hot path. Fed by `gateway.serve`.

submit → bounded queue → journal on disk (`gateway.spool`) → each store at its own pace (`gateway.delivery`). A batch
leaves the journal when every store has confirmed it, so a store that is away for a while loses nothing, and each counts
a batch once: Redis by the batch's number, the database by request id. A process that is killed loses what it had not
yet written to the journal: at most `interval_s` of requests. A machine that loses power may lose what its kernel had
not yet written to the disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections import deque
from pathlib import Path

import msgspec

from gateway.courier import Carried, Courier
from gateway.db import Database
from gateway.delivery import Delivery, Journals, SinkState
from gateway.sinks import DatabaseSink, Sink, StatsSink
from gateway.spool import Journal, abandoned
from gateway.stats import Statistics
from gateway.types import RequestRecord

log = logging.getLogger(__name__)


class RecorderState(msgspec.Struct):
    """Counters since the start, for `/readyz`, `/metrics` and the page."""

    submitted: int
    queued: int
    """Records that are not in the journal yet, those that are being written included."""
    dropped: int
    """Records lost because the queue was full or because they cannot be written."""
    spooled_bytes: int
    sinks: list[SinkState]


class Recorder:
    """One per gateway process. Nothing it does delays or fails a request."""

    def __init__(
        self,
        folder: Path,
        *,
        store: Statistics | None = None,
        database: Database | None = None,
        courier: Courier | None = None,
        queue_limit: int = 20_000,
        batch_limit: int = 500,
        interval_s: float = 0.25,
        spool_limit_bytes: int = 1 << 30,
    ) -> None:
        sinks: list[Sink] = [StatsSink(store)] if store is not None else []
        if database is not None:
            sinks.append(DatabaseSink(database))
        if courier is not None:
            sinks = [Carried(sink, courier) for sink in sinks]
        self._folder = folder
        self._writer = secrets.token_hex(8)
        self._journals = Journals([sink.name for sink in sinks])
        self._deliveries = [Delivery(sink, self._journals) for sink in sinks]
        self._queue: deque[RequestRecord] = deque()
        self._queue_limit = queue_limit
        self._batch_limit = batch_limit
        self._interval_s = interval_s
        self._spool_limit = spool_limit_bytes
        self._full = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._closing = False
        self._submitted = 0
        self._dropped = 0
        self._writing = 0

    def submit(self, record: RequestRecord) -> None:
        """Take a record. Never blocks, never raises: a record that finds the queue full is counted and dropped."""
        self._submitted += 1
        if len(self._queue) >= self._queue_limit:
            self._dropped += 1
            return
        self._queue.append(record)
        if len(self._queue) >= self._batch_limit:
            self._full.set()

    async def start(self) -> None:
        """Open the journal, take over what dead processes left, and begin to work. Never fails for a store's sake."""
        try:
            await asyncio.to_thread(self._open)
        except OSError as error:
            log.error("records cannot be spooled in %s: %s", self._folder, error)
        self._tasks = [asyncio.create_task(self._collect(), name="recorder")]
        self._tasks += [asyncio.create_task(each.run(), name=f"recorder {each.sink.name}") for each in self._deliveries]

    async def aclose(self, *, patience_s: float = 3.0) -> None:
        """Write all to the journal and give the stores a moment; what they do not take waits for the next start."""
        self._closing = True
        self._full.set()
        if self._tasks:
            await asyncio.wait(self._tasks[:1], timeout=patience_s)
            for delivery in self._deliveries:
                delivery.stop()
            await asyncio.wait(self._tasks, timeout=patience_s)
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        for journal in self._journals.all():
            await asyncio.to_thread(self._journals.release, journal)
        self._journals.left, self._journals.own = [], None

    def state(self) -> RecorderState:
        """Return the counters."""
        spooled = sum(journal.size for journal in self._journals.all())
        sinks = [delivery.state() for delivery in self._deliveries]
        return RecorderState(self._submitted, len(self._queue) + self._writing, self._dropped, spooled, sinks)

    def _open(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._journals.left = abandoned(self._folder, limit_bytes=self._spool_limit)
        for delivery in self._deliveries:
            name = delivery.sink.name
            delivery.pending = sum(journal.count(journal.confirmed(name)) for journal in self._journals.left)
        self._journals.own = Journal(self._folder, self._writer, limit_bytes=self._spool_limit)

    async def _collect(self) -> None:
        """Move the queue into the journal, every `interval_s` or as soon as a batch is full."""
        while not (self._closing and not self._queue):
            if not self._closing:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._full.wait(), self._interval_s)
            self._full.clear()
            while self._queue:
                batch = [self._queue.popleft() for _ in range(min(self._batch_limit, len(self._queue)))]
                self._writing = len(batch)
                try:
                    await self._write(batch)
                except Exception:
                    log.exception("%d records were lost", len(batch))
                    self._dropped += len(batch)
                self._writing = 0

    async def _write(self, batch: list[RequestRecord]) -> None:
        """Put a batch into the journal; where the disk will not take it, hand it to the stores directly, once."""
        journal = self._journals.own
        try:
            if journal is None:
                raise OSError("no journal")
            number = await asyncio.to_thread(journal.append, batch)
        except OSError as error:
            log.error("spool: %s; records go to the stores without it", error)
            await asyncio.gather(*(delivery.direct(self._writer, batch) for delivery in self._deliveries))
            return
        except Exception as error:
            await self._write_one_by_one(batch, error)
            return
        self._journals.remember(number, batch)
        for delivery in self._deliveries:
            delivery.pending += len(batch)
            delivery.written.set()
        if journal.size > self._spool_limit and await asyncio.to_thread(journal.trim):
            self._journals.forget_trimmed()

    async def _write_one_by_one(self, batch: list[RequestRecord], error: Exception) -> None:
        """Find the records that cannot be encoded, and drop these alone."""
        if len(batch) > 1:
            for record in batch:
                await self._write([record])
        else:
            log.error("record %s cannot be encoded and was dropped: %s", batch[0].request_id, error)
            self._dropped += 1
