"""Writes the prompts and answers that rules keep (`store`) to the database, in the background. Fed by `gateway.serve`.

From memory only: text is never spooled to disk, and what the database does not take in time is dropped and counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque

import msgspec

from gateway.db import Database, StoredText
from gateway.db.texts import expiry
from gateway.db.types import utc
from gateway.errors import StoreRefused, StoreUnavailable
from gateway.tap import LIMIT, Kept

log = logging.getLogger(__name__)
_LONG = 1024
"""Characters from which on images and sounds in a prompt are left out."""
_BATCH = 50
_INTERVAL_S = 0.5
_LONGEST_PAUSE_S = 5.0
_encoder = msgspec.json.Encoder()


class TextsState(msgspec.Struct):
    """Counters since the start, for `/readyz`."""

    ok: bool
    detail: str
    kept: int
    queued: int
    dropped: int
    """Texts lost because the database was away for too long, or refused them."""


class TextKeeper:
    """One per gateway process. Nothing it does delays or fails a request."""

    def __init__(self, database: Database, *, limit_bytes: int = 64 << 20) -> None:
        self._database = database
        self._limit = limit_bytes
        self._queue: deque[Kept] = deque()
        self._bytes = 0
        self._kept = 0
        self._dropped = 0
        self._error = ""
        self._closing = False
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def submit(self, kept: Kept) -> None:
        """Take a text. Never blocks, never raises; one that finds the queue full is dropped and counted."""
        if self._bytes + kept.size > self._limit:
            self._dropped += 1
            return
        self._bytes += kept.size
        self._queue.append(kept)

    async def start(self) -> None:
        """Begin to write."""
        self._task = asyncio.create_task(self._write_all(), name="texts")

    async def aclose(self, *, patience_s: float = 2.0) -> None:
        """Give the database a moment for what is queued; the rest is dropped."""
        self._closing = True
        self._wake.set()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=patience_s)
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self._queue:
            log.warning("%d prompts that should have been kept were dropped: %s", len(self._queue), self._error)

    def state(self) -> TextsState:
        """Return the counters."""
        return TextsState(not self._error, self._error, self._kept, len(self._queue), self._dropped)

    async def _write_all(self) -> None:
        """Write what is queued, twice a second; while the database is away, try again after growing pauses."""
        pause = _INTERVAL_S
        while not (self._closing and not self._queue):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), pause)
            try:
                while self._queue:
                    await self._write_some()
            except StoreUnavailable as error:
                self._error = str(error)
                pause = min(_LONGEST_PAUSE_S, 2 * pause)
                if self._closing:
                    return
            except Exception as error:  # whatever it is, its message may quote the text
                log.error("prompts cannot be kept: %s", type(error).__name__)
                self._error = type(error).__name__
                self._drop()
            else:
                self._error, pause = "", _INTERVAL_S

    def _drop(self) -> None:
        """Give up what is queued."""
        self._dropped += len(self._queue)
        self._queue.clear()
        self._bytes = 0

    async def _write_some(self) -> None:
        """Write a batch; it leaves the queue when it is written, or refused. Raises StoreUnavailable."""
        batch = [self._queue[at] for at in range(min(_BATCH, len(self._queue)))]
        rows = await asyncio.to_thread(_rows, batch)
        written = len(rows)
        try:
            await self._database.insert_texts(rows)
        except (StoreRefused, ValueError, TypeError):
            written = sum([await self._written(row) for row in rows])
        self._kept += written
        self._dropped += len(batch) - written
        for kept in batch:
            self._queue.popleft()
            self._bytes -= kept.size

    async def _written(self, row: StoredText) -> bool:
        """Write one text; False where the database refuses it."""
        try:
            await self._database.insert_texts([row])
        except (StoreRefused, ValueError, TypeError) as error:
            log.error("the text of request %s was refused: %s", row.request_id, type(error).__name__)
            return False
        return True


def _rows(batch: list[Kept]) -> list[StoredText]:
    """Return the rows of those that can be written at all. Errors never show the text."""
    rows = []
    for kept in batch:
        try:
            rows.append(stored(kept))
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            log.error("the text of request %s cannot be kept: %s", kept.record.request_id, type(error).__name__)
    return rows


def stored(kept: Kept) -> StoredText:
    """Return the row. Raises ValueError or TypeError where the body cannot be written as JSON again."""
    record = kept.record
    prompt = kept.body.get("messages" if record.endpoint == "chat" else "prompt")
    text = _encode(_without_media(prompt))
    long = len(text) > LIMIT
    return StoredText(
        request_id=record.request_id,
        at=utc(record.at),
        expires_at=expiry(record.at, kept.retention),
        endpoint=record.endpoint,
        model=record.model,
        key_id=record.key_id,
        end_user=record.end_user,
        task=record.task,
        rule=record.decision.rule,
        policy=record.decision.policy,
        status=record.status,
        prompt=_encode(text[:LIMIT]) if long else text,
        completion=_encode(kept.tap.choices() if kept.tap else []),
        truncated=long or (kept.tap is not None and kept.tap.truncated),
    )


def _encode(value: object) -> str:
    return _encoder.encode(value).decode()


def _without_media(value: object) -> object:
    """Return a prompt without the images and sounds that it carries in itself: they are no text, and large."""
    if isinstance(value, list):
        return [_without_media(item) for item in value]
    if isinstance(value, dict):
        return {
            name: f"({len(item)} characters left out)"
            if isinstance(item, str) and len(item) > _LONG and (name == "data" or item.startswith("data:"))
            else _without_media(item)
            for name, item in value.items()
        }
    return value
