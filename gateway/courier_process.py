"""The helper process of `courier.py`: takes batches of records over its input and delivers them to the stores.

Run by the gateway as `python -m gateway.courier_process`. It ends as soon as its input does, and on Linux the kernel
ends it with the gateway even where it is frozen; what it had not delivered is still in the gateway's journal.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import sys

import msgspec

from gateway.courier import Opening, Parcel, Receipt, framed, read_frame
from gateway.db import Database
from gateway.errors import StoreUnavailable
from gateway.logs import configure
from gateway.sinks import DatabaseSink, Sink, StatsSink
from gateway.stats import StatsStore

_NICENESS = 5
"""Requests come first."""
_PR_SET_PDEATHSIG = 1
_MOST_BYTES = 256 << 20
_parcel = msgspec.msgpack.Decoder(Parcel).decode


class Process:
    """The stores, and what is on its way to them."""

    def __init__(self, opening: Opening) -> None:
        sinks: list[Sink] = []
        if opening.redis:
            sinks.append(StatsSink(StatsStore(opening.redis)))
        if opening.database:
            sinks.append(DatabaseSink(Database(opening.database)))
        self._sinks = {sink.name: sink for sink in sinks}
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, frame: bytes) -> None:
        """Begin to deliver a batch; batches for the two stores do not wait for each other."""
        task = asyncio.create_task(self._deliver(_parcel(frame)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _deliver(self, parcel: Parcel) -> None:
        sink = self._sinks[parcel.sink]
        before = sink.delivered, sink.refused
        try:
            await sink.deliver(parcel.writer, parcel.number, parcel.records)
        except StoreUnavailable as error:
            receipt = Receipt(parcel.ticket, error=str(error) or "no answer")
        except Exception as error:
            logging.exception("delivery to %s", parcel.sink)
            receipt = Receipt(parcel.ticket, error=f"{type(error).__name__}: {error}")
        else:
            receipt = Receipt(parcel.ticket, sink.delivered - before[0], sink.refused - before[1])
        sys.stdout.buffer.write(framed(receipt))
        sys.stdout.buffer.flush()


async def main() -> None:
    """Deliver until the input ends."""
    reader = asyncio.StreamReader(limit=_MOST_BYTES)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    process: Process | None = None
    while True:
        try:
            frame = await read_frame(reader)
        except asyncio.IncompleteReadError:
            os._exit(0)  # at once: a store that hangs must not keep us
        if process is None:
            process = Process(msgspec.msgpack.decode(frame, type=Opening))
        else:
            process.take(frame)


def end_with_parent() -> None:
    """Ask the kernel to kill this process when the gateway ends (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(_NICENESS)
    configure("warning", os.environ.get("BREAKEVEN_LOG_FORMAT", "").strip() or "text")
    asyncio.run(main())
