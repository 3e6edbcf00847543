"""Large batches of records go to the stores from a process of their own, so that requests need not share theirs.

Between `delivery.py` and the sinks: `Carried` has a sink's form and hands what is large to the helper process
(`courier_process.py`), which has sinks of its own. Small batches, and all of them where the process does not answer,
are delivered from here. A store counts each batch once, so one that both have delivered does no harm.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import struct
import sys
from itertools import count

import msgspec

from gateway.errors import StoreUnavailable
from gateway.sinks import Sink
from gateway.types import RequestRecord

log = logging.getLogger(__name__)
LARGE = 64
"""Records from which on a batch is worth the way."""
_PATIENCE_S = 60.0
"""A store's own time limits end sooner; a process that says nothing for so long is frozen."""
_PAUSE_S = 30.0
"""After the process failed, until it is tried again."""
LENGTH = struct.Struct("<I")
_encode = msgspec.msgpack.Encoder().encode


class Opening(msgspec.Struct):
    """The first message to the process: where the stores are (empty: not there)."""

    redis: str
    database: str


class Parcel(msgspec.Struct, array_like=True):
    """A batch for one of its sinks."""

    ticket: int
    sink: str
    writer: str
    number: int
    records: list[RequestRecord]


class Receipt(msgspec.Struct, array_like=True):
    """What became of it; `error`: the store is away."""

    ticket: int
    delivered: int = 0
    refused: int = 0
    error: str = ""


_receipt = msgspec.msgpack.Decoder(Receipt).decode


def framed(message: Opening | Parcel | Receipt) -> bytes:
    """Return a message as it goes over a pipe: its length, then MessagePack."""
    payload = _encode(message)
    return LENGTH.pack(len(payload)) + payload


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    """Read one message. Raises IncompleteReadError where the other side has ended."""
    (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
    return await reader.readexactly(length)


class Courier:
    """The helper process: started with the first large batch, ended with us (its input ends)."""

    def __init__(self, *, redis: str, database: str) -> None:
        self._opening = Opening(redis, database)
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._waiting: dict[int, asyncio.Future[Receipt]] = {}
        self._tickets = count(1)
        self._starting = asyncio.Lock()
        self._not_before = float("-inf")

    @property
    def pid(self) -> int | None:
        """The process's id, None where none runs."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    def serves(self, sink: str) -> bool:
        """Whether the process has such a sink: statistics without Redis live in the gateway's own memory."""
        return bool(self._opening.redis if sink == "redis" else self._opening.database)

    async def carry(self, sink: str, writer: str, number: int, records: list[RequestRecord]) -> Receipt | None:
        """Have a batch delivered; None where the process could not do it."""
        try:
            stdin = await self._stdin()
            ticket = next(self._tickets)
            answer = self._waiting[ticket] = asyncio.get_running_loop().create_future()
            try:
                stdin.write(framed(Parcel(ticket, sink, writer, number, records)))
                await stdin.drain()
                return await asyncio.wait_for(answer, _PATIENCE_S)
            finally:
                del self._waiting[ticket]
        except (OSError, TimeoutError, EOFError) as error:
            if asyncio.get_running_loop().time() >= self._not_before:
                log.warning("records are delivered from this process: %s", str(error) or "no answer from the helper")
                self._not_before = asyncio.get_running_loop().time() + _PAUSE_S
            self._kill()
            return None

    async def aclose(self) -> None:
        """End the process."""
        process, self._not_before = self._process, float("inf")
        if process is not None and process.stdin is not None:
            process.stdin.close()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), 2.0)
            self._kill()
            await process.wait()
        if self._reading is not None:
            await asyncio.gather(self._reading, return_exceptions=True)

    async def _stdin(self) -> asyncio.StreamWriter:
        async with self._starting:
            if self.pid is None:
                if asyncio.get_running_loop().time() < self._not_before:
                    raise OSError("the helper process failed a moment ago")
                self._process = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "gateway.courier_process",
                    stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, start_new_session=True,
                )  # fmt: skip
                self._reading = asyncio.create_task(self._read(self._process), name="courier")
                self._write_opening(self._process)
            process = self._process
            if process is None or process.stdin is None:
                raise OSError("the helper process has no input")
            return process.stdin

    def _write_opening(self, process: asyncio.subprocess.Process) -> None:
        if process.stdin is not None:
            process.stdin.write(framed(self._opening))

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        """Hand receipts to those who wait, until the process ends."""
        with contextlib.suppress(asyncio.IncompleteReadError, OSError, msgspec.MsgspecError):
            while process.stdout is not None:
                receipt = _receipt(await read_frame(process.stdout))
                answer = self._waiting.get(receipt.ticket)
                if answer is not None and not answer.done():
                    answer.set_result(receipt)
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(EOFError("the helper process ended"))
        await process.wait()

    def _kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()


class Carried:
    """A sink whose large batches a courier delivers."""

    def __init__(self, sink: Sink, courier: Courier) -> None:
        self.name, self.pace_s, self.most = sink.name, sink.pace_s, sink.most
        self.delivered, self.refused = sink.delivered, sink.refused
        self._sink = sink
        self._courier = courier

    async def deliver(self, writer: str, number: int, records: list[RequestRecord]) -> None:
        """Deliver a batch (see `Sink`). Raises StoreUnavailable."""
        receipt = None
        if number and len(records) >= LARGE and self._courier.serves(self.name):  # without a number nothing is checked
            receipt = await self._courier.carry(self.name, writer, number, records)
        if receipt is None:
            before = self._sink.delivered, self._sink.refused
            await self._sink.deliver(writer, number, records)
            receipt = Receipt(0, self._sink.delivered - before[0], self._sink.refused - before[1])
        if receipt.error:
            raise StoreUnavailable(receipt.error)
        self.delivered += receipt.delivered
        self.refused += receipt.refused
