"""Brings one store up to date from the journals, at its own pace. One per store, run by `recorder.py`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence

import msgspec

from gateway.errors import StoreUnavailable
from gateway.sinks import Sink
from gateway.spool import Journal
from gateway.types import RequestRecord

log = logging.getLogger(__name__)
_RECENT = 64
_AT_ONCE = 16
_LONGEST_PAUSE_S = 5.0
_SAVE_EVERY_S = 1.0
Batch = tuple[int, list[RequestRecord]]
"""A batch with its number."""


class SinkState(msgspec.Struct):
    """One store as the recorder sees it; records since the start."""

    name: str
    ok: bool
    detail: str
    """Why not."""
    delivered: int
    """Records that it has confirmed."""
    pending: int
    """Records in the journals that it has not confirmed."""
    refused: int
    """Records that it will never take."""
    lost: int
    """Records that the journal's limit pushed out before it came back, or that no disk would take meanwhile."""


class Journals:
    """The journals that this process works on: its own, and those that dead processes left, which come first."""

    def __init__(self, stores: Sequence[str]) -> None:
        self.stores = stores
        self.own: Journal | None = None
        self.left: list[Journal] = []
        self.recent: dict[int, list[RequestRecord]] = {}
        """The newest batches of our own, so that a store that keeps up is served from memory."""

    def all(self) -> list[Journal]:
        """Return them in the order of delivery."""
        return [*self.left, self.own] if self.own else list(self.left)

    def remember(self, number: int, batch: list[RequestRecord]) -> None:
        """Keep a batch of our own in memory for a while."""
        self.recent[number] = batch
        if len(self.recent) > _RECENT:
            del self.recent[min(self.recent)]

    def forget_delivered(self) -> None:
        """Drop from memory what every store has."""
        if self.own is not None:
            done = min(map(self.own.confirmed, self.stores))
            for number in [number for number in self.recent if number <= done]:
                del self.recent[number]

    def forget_trimmed(self) -> None:
        """Drop from memory what the limit has pushed out of our own journal, so that it is not delivered and lost."""
        if self.own is not None:
            for number in [number for number in self.recent if number < self.own.first]:
                del self.recent[number]

    def is_done(self, journal: Journal) -> bool:
        """Whether every store has all of a journal."""
        return all(journal.confirmed(name) >= journal.last for name in self.stores)

    def release(self, journal: Journal) -> None:
        """Close a journal; one that every store has is deleted."""
        journal.close(remove=self.is_done(journal))

    async def batches(self, journal: Journal, after: int) -> list[Batch]:
        """Return the batches that follow number `after`: those that memory has, else from disk."""
        found: list[Batch] = []
        if journal is self.own:
            while len(found) < _AT_ONCE and (known := self.recent.get(after + 1 + len(found))) is not None:
                found.append((after + 1 + len(found), known))
        return found or await asyncio.to_thread(journal.read, after, _AT_ONCE)


class Delivery:
    """Delivers to one store until told to stop."""

    def __init__(self, sink: Sink, journals: Journals) -> None:
        self.sink = sink
        self.written = asyncio.Event()
        """Set when there is something new."""
        self.stopping = False
        """Whether `run` ends as soon as everything is delivered or the store does not answer."""
        self.error = ""
        self.pending = 0
        self.lost = 0
        self._journals = journals
        self._stop = asyncio.Event()
        self._unsaved: float | None = None
        """Since when our own journal lacks, on disk, what this store has (monotonic clock)."""

    def stop(self) -> None:
        """Let `run` end soon."""
        self.stopping = True
        self._stop.set()
        self.written.set()

    def state(self) -> SinkState:
        """Return the counters."""
        sink = self.sink
        gone = sum(journal.missing(journal.confirmed(sink.name)) for journal in self._journals.all())
        pending = max(0, self.pending - gone)
        return SinkState(sink.name, not self.error, self.error, sink.delivered, pending, sink.refused, self.lost + gone)

    async def run(self) -> None:
        """Deliver whatever is there, then wait for news; while the store is away, try again after growing pauses."""
        pause = 0.0
        while True:
            try:
                busy = await self._deliver_some()
                await self._save_if_due()
            except StoreUnavailable as error:
                self._away(str(error))
                pause = min(_LONGEST_PAUSE_S, max(0.25, pause * 2))
            except Exception:
                log.exception("%s: delivery failed", self.sink.name)
                self._away("delivery failed; see the log")
                pause = _LONGEST_PAUSE_S
            else:
                pause = 0.0
                self._back()
            if self.stopping and (pause or not busy):
                return
            if pause:
                await asyncio.sleep(pause)
            elif busy:
                await self._breathe()
            else:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.written.wait(), None if self._unsaved is None else _SAVE_EVERY_S)
                self.written.clear()

    async def _breathe(self) -> None:
        """Keep the store's pace, but not while the journal is far ahead or the end is near."""
        own = self._journals.own
        behind = own is None or own.last - own.confirmed(self.sink.name) >= _AT_ONCE
        if self.sink.pace_s and not behind and not self._journals.left:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), self.sink.pace_s)

    async def direct(self, writer: str, batch: list[RequestRecord]) -> None:
        """Deliver a batch that no disk would take: once, now or never."""
        try:
            await self.sink.deliver(writer, 0, batch)
        except StoreUnavailable as error:
            self._away(str(error))
            self.lost += len(batch)

    async def _deliver_some(self) -> bool:
        """Deliver some batches; False when there were none."""
        for journal in self._journals.all():
            if await self._deliver_from(journal):
                return True
            if journal in self._journals.left and self._journals.is_done(journal):
                self._journals.left.remove(journal)
                await asyncio.to_thread(self._journals.release, journal)
        return False

    async def _deliver_from(self, journal: Journal) -> bool:
        name, done = self.sink.name, journal.confirmed(self.sink.name)
        if done >= journal.last:
            return False
        batches = await self._journals.batches(journal, done)
        if not batches:  # the rest of the journal is damaged
            journal.note(name, journal.last)
        while batches:
            together = self._together(batches)
            number = together[-1][0]
            await self.sink.deliver(journal.writer, number, [record for _, records in together for record in records])
            for number, records in together:
                self._count(journal, done, number, len(records))
                done = number
            journal.note(name, done)
            batches = batches[len(together) :]
        if journal is not self._journals.own:
            await asyncio.to_thread(journal.save, name, self._journals.stores)
        else:
            self._journals.forget_delivered()
            self._unsaved = self._unsaved or time.monotonic()
        return True

    def _together(self, batches: list[Batch]) -> list[Batch]:
        """Return the first batches, as many as the store takes at once; one at least."""
        size = 0
        for place, (_, records) in enumerate(batches):
            size += len(records)
            if place and size > self.sink.most:
                return batches[:place]
        return batches

    async def _save_if_due(self) -> None:
        """Write down what the store has, once a second: until then, a store that is told again counts it once."""
        own = self._journals.own
        if own is not None and self._unsaved is not None and time.monotonic() - self._unsaved >= _SAVE_EVERY_S:
            self._unsaved = None
            await asyncio.to_thread(own.save, self.sink.name, self._journals.stores)

    def _count(self, journal: Journal, before: int, number: int, records: int) -> None:
        """Note a delivered batch, and those that the journal's limit had pushed out before it."""
        gone = journal.missing(before, number)
        if gone:
            log.error("the spool was full: %d records for %s were lost", gone, self.sink.name)
        self.lost += gone
        self.pending -= records + gone

    def _away(self, reason: str) -> None:
        if not self.error:
            log.warning("%s is away, records are spooled: %s", self.sink.name, reason)
        self.error = reason

    def _back(self) -> None:
        if self.error:
            log.warning("%s is back", self.sink.name)
        self.error = ""
