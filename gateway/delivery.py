"""Brings one store up to date from the journals, at its own pace. One per store, run by `recorder.py`."""

from __future__ import annotations

import asyncio
import logging
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

    def batches(self, journal: Journal, after: int) -> list[tuple[int, list[RequestRecord]]]:
        """Return the batches that follow number `after`; from disk, so call it in a thread."""
        known = self.recent.get(after + 1) if journal is self.own else None
        return journal.read(after, _AT_ONCE) if known is None else [(after + 1, known)]


class Delivery:
    """Delivers to one store until told to stop."""

    def __init__(self, sink: Sink, journals: Journals) -> None:
        self.sink = sink
        self.written = asyncio.Event()
        """Set when there is something new."""
        self.stopping = False
        """Set to end `run` as soon as everything is delivered or the store does not answer."""
        self.error = ""
        self.pending = 0
        self.lost = 0
        self._journals = journals

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
            elif not busy:
                await self.written.wait()
                self.written.clear()

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
        batches = await asyncio.to_thread(self._journals.batches, journal, done)
        for number, records in batches:
            await self.sink.deliver(journal.writer, number, records)
            self._count(journal, done, number, len(records))
            done = number
            await asyncio.to_thread(journal.confirm, name, number, self._journals.stores)
        if not batches:  # the rest of the journal is damaged
            await asyncio.to_thread(journal.confirm, name, journal.last, self._journals.stores)
        return True

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
