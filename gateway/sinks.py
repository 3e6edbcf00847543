"""The two places where records go, with what each must know to count a batch once. Called by `delivery.py`."""

from __future__ import annotations

import logging
from typing import Protocol

from gateway.db import Database
from gateway.errors import StoreRefused
from gateway.routing import observe
from gateway.stats import Statistics
from gateway.stats.store import Item
from gateway.types import RequestRecord

log = logging.getLogger(__name__)


class Sink(Protocol):
    """A store that takes batches of records."""

    name: str
    delivered: int
    """Records taken since the start."""
    refused: int
    """Records that it will never take."""
    pace_s: float
    """Pause after a delivery where it keeps up; what was written meanwhile comes in one."""
    most: int
    """Records of several batches that it takes as one."""

    async def deliver(self, writer: str, number: int, records: list[RequestRecord]) -> None:
        """Take a batch, once per (writer, number) however often it is called; number 0 is not checked.

        Raises StoreUnavailable.
        """
        ...


class StatsSink:
    """Redis: the records' increments, applied together with the batch's number."""

    def __init__(self, store: Statistics) -> None:
        self.name = "redis"
        self.pace_s, self.most = 0.0, 1  # a batch is known by its number, so each comes alone
        self.delivered = self.refused = 0
        self._store = store

    async def deliver(self, writer: str, number: int, records: list[RequestRecord]) -> None:
        """Add the increments. A record that cannot be read as counters is refused alone."""
        items: list[Item] = []
        refused = 0
        for record in records:
            try:
                items += [(int(record.at // 60), key, increments) for key, increments in observe(record)]
            except (ValueError, TypeError, ArithmeticError, LookupError) as error:
                refused += 1
                log.error("record %s cannot be counted: %s: %s", record.request_id, type(error).__name__, error)
        try:
            await self._store.add(items, writer=writer, sequence=number)
        except OverflowError as error:
            log.error("redis: %s", error)
        self.refused += refused
        self.delivered += len(records) - refused


class DatabaseSink:
    """The database: rows and roll-ups in one transaction, where a known request id changes nothing."""

    def __init__(self, database: Database) -> None:
        self.name = "database"
        self.pace_s, self.most = 1.0, 2_000  # a transaction costs as much as dozens of rows
        self.delivered = self.refused = 0
        self._database = database

    async def deliver(self, writer: str, number: int, records: list[RequestRecord]) -> None:
        """Insert the batch; where it is refused, find the records at fault one by one and leave them out."""
        try:
            await self._database.insert_records(records, writer=writer)
        except (StoreRefused, ValueError, TypeError, ArithmeticError, LookupError) as error:
            if len(records) > 1:
                for record in records:
                    await self.deliver(writer, number, [record])
                return
            log.error("record %s was refused: %s", records[0].request_id, error)
            self.refused += 1
            return
        self.delivered += len(records)
