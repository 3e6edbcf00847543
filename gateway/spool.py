"""The recorder's journal on disk: numbered batches of records, kept until every store has them.

Called by `recorder.py`, from several threads. `<folder>/<writer>/<first number>.log` are segments of frames (length,
checksum, number, MessagePack). A frame survives the death of the process as soon as it is written; it may be lost with
the machine's power, since nothing is flushed to the disk. `cursor.<store>` holds the last number that a store has
confirmed. `lock` is held by the process that works on a journal, so that the next one adopts only what a dead one left.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import struct
import threading
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from gateway.types import RequestRecord

_HEADER = struct.Struct("<IIQI")
"""Length of the payload, its CRC-32, the batch's number, records in it."""
_SEGMENT_BYTES = 4 << 20
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[RequestRecord])


class Journal:
    """One writer's batches. Only the process that holds its lock may use it; thread-safe."""

    def __init__(self, folder: Path, writer: str, *, limit_bytes: int = 1 << 30) -> None:
        self.writer = writer
        self.folder = folder / writer
        self._limit = limit_bytes
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = (self.folder / "lock").open("wb")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise
        self._mutex = threading.RLock()
        self._segments = {int(path.stem): path.stat().st_size for path in self.folder.glob("*.log")}
        self._cut_torn_end()
        self._confirmed = dict(self._cursors())
        self._saved = self._confirmed.copy()
        written = (frame.number for first in self._segments for frame in self._frames(first))
        self.last = max((*written, *self._confirmed.values()), default=0)
        self._file: BinaryIO | None = None
        self._current = 0
        self._trimmed: dict[int, int] = {}

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(self._segments.copy().values())

    def append(self, records: list[RequestRecord]) -> int:
        """Write a batch; return its number. Raises OSError (then nothing is written) or ValueError (not encodable)."""
        payload = _encoder.encode(records)
        with self._mutex:
            number = self.last + 1
            file = self._writable(number)
            frame = _HEADER.pack(len(payload), zlib.crc32(payload), number, len(records)) + payload
            try:
                file.write(frame)
                file.flush()
            except OSError:
                self._abandon_segment()
                raise
            self._segments[self._current] += len(frame)
            self.last = number
            return number

    def confirm(self, store: str, number: int, stores: Sequence[str]) -> None:
        """Note that `store` has everything up to `number`, on disk too (see `save`). Raises OSError."""
        self.note(store, number)
        self.save(store, stores)

    def note(self, store: str, number: int) -> None:
        """Note in memory that `store` has everything up to `number`: should we die before `save`, it is told again."""
        self._confirmed[store] = number

    def save(self, store: str, stores: Sequence[str]) -> None:
        """Write down what `store` has, and delete what all `stores` have. Raises OSError."""
        with self._mutex:
            self._write_cursor(store)
            done = min(self.confirmed(name) for name in stores)
            for gone in [gone for gone in self._trimmed if gone <= done]:
                del self._trimmed[gone]
            for first in sorted(self._segments):
                if self._last_of(first) > done:
                    break
                self._delete(first)

    @property
    def first(self) -> int:
        """The lowest number on disk."""
        return min(self._segments.copy(), default=self.last + 1)

    def confirmed(self, store: str) -> int:
        """Return the last number that `store` has, 0 where it has none."""
        return self._confirmed.get(store, 0)

    def read(self, after: int, limit: int) -> list[tuple[int, list[RequestRecord]]]:
        """Return up to `limit` batches with numbers above `after`; damaged ends of segments are left out."""
        found: list[tuple[int, list[RequestRecord]]] = []
        with self._mutex:
            for first in sorted(self._segments):
                if self._last_of(first) <= after:
                    continue
                for frame in self._frames(first, after):
                    found.append((frame.number, _decoder.decode(frame.payload)))
                    if len(found) >= limit:
                        return found
        return found

    def count(self, after: int) -> int:
        """Return how many records have numbers above `after`."""
        with self._mutex:
            firsts = [first for first in self._segments if self._last_of(first) > after]
            return sum(frame.records for first in firsts for frame in self._frames(first) if frame.number > after)

    def trim(self) -> bool:
        """Delete the oldest segments while the journal is over its limit; return whether any was.

        A store that is further behind loses what was in them: `missing` says how many records.
        """
        with self._mutex:
            before = len(self._segments)
            while self.size > self._limit and len(self._segments) > 1:
                first = min(self._segments)
                self._trimmed |= {frame.number: frame.records for frame in self._frames(first)}
                self._delete(first)
            return len(self._segments) < before

    def missing(self, after: int, before: int | None = None) -> int:
        """Return how many records with numbers above `after` (and below `before`) were trimmed away."""
        with self._mutex:
            end = self.last + 1 if before is None else before
            return sum(records for number, records in self._trimmed.items() if after < number < end)

    def close(self, *, remove: bool = False) -> None:
        """Release the journal; `remove` it where nothing in it is needed any more."""
        with self._mutex:
            if self._file is not None:
                self._file.close()
                self._file = None
            if remove:
                shutil.rmtree(self.folder, ignore_errors=True)
            else:
                with contextlib.suppress(OSError):
                    for store in self._confirmed:
                        self._write_cursor(store)
            self._lock.close()

    @property
    def _segment_limit(self) -> int:
        return min(_SEGMENT_BYTES, self._limit // 8)

    def _writable(self, number: int) -> BinaryIO:
        """Return the segment to write to, a new one where the last is full."""
        if self._file is None or self._segments.get(self._current, self._segment_limit) >= self._segment_limit:
            if self._file is not None:
                self._file.close()
            self._file = self._path(number).open("ab")
            self._current = number
            self._segments[number] = self._path(number).stat().st_size
        return self._file

    def _write_cursor(self, store: str) -> None:
        number = self._confirmed[store]
        if self._saved.get(store) != number:
            temporary = self.folder / f"new.{store}"
            temporary.write_text(str(number), "ascii")
            temporary.replace(self.folder / f"cursor.{store}")
            self._saved[store] = number

    def _abandon_segment(self) -> None:
        """After a failed write, cut off what was half written and let the next batch begin a new segment."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None
        with contextlib.suppress(OSError):
            os.truncate(self._path(self._current), self._segments[self._current])

    def _cut_torn_end(self) -> None:
        """Remove the frame that a dying process had half written, so that the segment may be written on."""
        if self._segments:
            last = max(self._segments)
            end = sum(_HEADER.size + len(frame.payload) for frame in self._frames(last, -1))
            if end < self._segments[last]:
                os.truncate(self._path(last), end)
                self._segments[last] = end

    def _delete(self, first: int) -> None:
        if first == self._current and self._file is not None:
            self._file.close()
            self._file = None
        self._path(first).unlink(missing_ok=True)
        del self._segments[first]

    def _last_of(self, first: int) -> int:
        return min((other for other in self._segments if other > first), default=self.last + 1) - 1

    def _path(self, first: int) -> Path:
        return self.folder / f"{first:012d}.log"

    def _cursors(self) -> Iterator[tuple[str, int]]:
        for path in self.folder.glob("cursor.*"):
            with contextlib.suppress(OSError, ValueError):
                yield path.name.removeprefix("cursor."), int(path.read_text("ascii"))

    def _frames(self, first: int, after: int | None = None) -> Iterator[_Frame]:
        """Yield the frames of a segment up to its first torn one: all without payloads, or those above `after`."""
        try:
            file = self._path(first).open("rb")
        except FileNotFoundError:
            return
        with file:
            end = os.fstat(file.fileno()).st_size
            while len(header := file.read(_HEADER.size)) == _HEADER.size:
                length, checksum, number, records = _HEADER.unpack(header)
                if file.tell() + length > end:
                    return
                if after is None or number <= after:
                    file.seek(length, os.SEEK_CUR)
                    if after is None:
                        yield _Frame(number, records)
                    continue
                payload = file.read(length)
                if zlib.crc32(payload) != checksum:
                    return
                yield _Frame(number, records, payload)


class _Frame(NamedTuple):
    number: int
    records: int
    payload: bytes = b""


def abandoned(folder: Path, *, limit_bytes: int = 1 << 30) -> list[Journal]:
    """Take over the journals that dead processes left in `folder`."""
    found = []
    for path in sorted(folder.glob("*/lock")):
        with contextlib.suppress(OSError):
            found.append(Journal(folder, path.parent.name, limit_bytes=limit_bytes))
    return found
