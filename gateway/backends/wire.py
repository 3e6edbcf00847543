"""HTTP/1.1 to one server over kept connections: the part of the client that every request pays for. For `client.py`.

A general client spends more time on a request than classification, decision and recording together. This one sends a
POST and parses the answer with httptools (llhttp, the parser of Node.js and uvicorn); nothing else.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from typing import cast
from urllib.parse import urlsplit

import httptools

_HIGH_WATER = 1 << 18
"""Bytes of an answer kept for a slow client before the server is made to wait."""


class ConnectionBroken(Exception):  # says what happened
    """The connection ended before the answer did. `stale`: it was a kept one and nothing of the answer had come."""

    def __init__(self, message: str, *, stale: bool = False) -> None:
        super().__init__(message)
        self.stale = stale


class Answer:
    """One response while it arrives; outlives its connection, which is free again once the response is complete."""

    __slots__ = ("_broken", "_connection", "_parts", "_size", "_waiter", "complete", "headers", "started", "status")

    def __init__(self, connection: Connection) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        """Names in lower case."""
        self.started = False
        """Whether the head is there."""
        self.complete = False
        self._connection: Connection | None = connection
        self._parts: list[bytes] = []
        self._size = 0
        self._waiter: asyncio.Future[None] | None = None
        self._broken: BaseException | None = None

    async def head(self) -> None:
        """Wait for status and headers. Raises ConnectionBroken or what `fail` was given."""
        while not self.started:
            await self._wait()

    async def chunk(self) -> bytes:
        """Return what has arrived, b"" at the end. Raises like `head`."""
        while not self._parts:
            if self.complete:
                return b""
            await self._wait()
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        if self._size > _HIGH_WATER and self._connection is not None:
            self._connection.resume()
        self._size = 0
        return data

    @property
    def taken(self) -> bool:
        """Whether all has arrived and was handed out."""
        return self.complete and not self._parts

    async def read(self) -> bytes:
        """Return the whole body. Raises like `head`."""
        while not self.complete:
            await self._wait()
            if self._size > _HIGH_WATER and self._connection is not None:
                self._connection.resume()
        return b"".join(self._parts)

    async def _wait(self) -> None:
        if self._broken is None:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        self._check()

    def _check(self) -> None:
        if self._broken is not None and not self.complete:
            raise self._broken

    def add(self, part: bytes) -> bool:
        """Take a piece of the body; True where the reader is far behind."""
        self._parts.append(part)
        self._size += len(part)
        return self._size > _HIGH_WATER

    def wake(self) -> None:
        """Let the reader look."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def finish(self) -> None:
        """Note that all has arrived."""
        self.complete, self._connection = True, None

    def fail(self, error: BaseException) -> None:
        """End the reader's wait with an error."""
        if not self.complete:
            self._broken = error
            self.wake()

    def abort(self) -> None:
        """Drop the connection if the answer is not complete."""
        if self._connection is not None:
            self._connection.abort()


class Connection(asyncio.Protocol):
    """One connection; carries one request at a time."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._transport: asyncio.Transport | None = None
        self._parts: list[bytes] = []
        self.on_body = self._parts.append
        """What the parser calls with each piece of a body: kept free of Python code, as there is one call per token."""
        self._parser = httptools.HttpResponseParser(self)
        self._answer: Answer | None = None
        self._used = False
        self._paused = False
        self._sized = False
        self.idle_since = 0.0

    def send(self, head: bytes, body: bytes) -> Answer:
        """Send a request and return its answer, still empty."""
        if self._transport is None or self._transport.is_closing():
            raise ConnectionBroken("the connection was closed", stale=self._used)
        self._answer = Answer(self)
        self._sized = False
        self._transport.writelines((head, body))
        return self._answer

    @property
    def usable(self) -> bool:
        """Whether a request may be sent."""
        return self._transport is not None and not self._transport.is_closing()

    def abort(self) -> None:
        """Drop the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def resume(self) -> None:
        """Read on."""
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note the transport (asyncio calls this)."""
        self._transport = cast("asyncio.Transport", transport)  # asyncio's promise; uvloop's is of no such class

    def data_received(self, data: bytes) -> None:
        """Parse what has arrived (asyncio calls this)."""
        answer = self._answer
        if answer is None:
            self.abort()  # nobody asked
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            answer.fail(ConnectionBroken(f"not HTTP: {error}"))
            self.abort()
        if self._parts and self._flush(answer) and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        answer.wake()

    def _flush(self, answer: Answer) -> bool:
        """Hand over what the parser has left; True where the reader is far behind."""
        behind = answer.add(self._parts[0] if len(self._parts) == 1 else b"".join(self._parts))
        self._parts.clear()
        return behind and not answer.complete

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the reader (asyncio calls this). A body without a length ends here."""
        self._transport = None
        self._pool.forget(self)
        answer, self._answer = self._answer, None
        if answer is None:
            return
        if answer.started and not self._sized and exc is None:
            answer.finish()
            answer.wake()
        else:
            why = str(exc) if exc else "the server closed the connection"
            answer.fail(ConnectionBroken(why, stale=self._used and not answer.started))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Note a header (the parser calls this)."""
        if self._answer is not None:
            key = name.lower()
            self._answer.headers[key] = value
            self._sized |= key in (b"content-length", b"transfer-encoding")

    def on_headers_complete(self) -> None:
        """Note that the head is there (the parser calls this)."""
        if self._answer is not None:
            self._answer.status = self._parser.get_status_code()
            self._answer.started = True

    def on_message_complete(self) -> None:
        """Free the connection (the parser calls this)."""
        answer = self._answer
        if answer is None or (answer.status < 200 and answer.status != 101):
            if answer is not None:
                answer.started = False  # an interim answer: the real one follows
            return
        if self._parts:
            self._flush(answer)
        answer.finish()
        self._answer = None
        self._used = True
        self.resume()
        if self._parser.should_keep_alive() and self.usable:
            self._pool.put_back(self)
        else:
            self.abort()


class Pool:
    """Connections to one server."""

    def __init__(self, url: str, *, keepalive: float, connect_timeout: float) -> None:
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        self.path = parts.path.rstrip("/")
        self.authority = parts.netloc.rpartition("@")[2]
        self._keepalive = keepalive
        self._connect_timeout = connect_timeout
        self._idle: deque[Connection] = deque()
        self._all: set[Connection] = set()

    def take(self) -> Connection | None:
        """Return the connection that was used last, if one is fresh enough to be trusted."""
        now = asyncio.get_running_loop().time()
        while self._idle:
            connection = self._idle.pop()
            if connection.usable and now - connection.idle_since < self._keepalive:
                return connection
            connection.abort()
        return None

    async def connect(self) -> Connection:
        """Open a connection. Raises OSError (TimeoutError included)."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(self._connect_timeout):
            _, connection = await loop.create_connection(
                lambda: Connection(self), self._host, self._port, ssl=self._tls
            )
        self._all.add(connection)
        return connection

    def put_back(self, connection: Connection) -> None:
        """Keep a connection for the next request; drop the one that has waited longest where its time is over."""
        now = asyncio.get_running_loop().time()
        connection.idle_since = now
        self._idle.append(connection)
        while self._idle and now - self._idle[0].idle_since >= self._keepalive:
            self._idle.popleft().abort()

    def forget(self, connection: Connection) -> None:
        """Note that a connection has ended."""
        self._all.discard(connection)

    async def aclose(self) -> None:
        """Drop all connections and wait a moment until they are gone."""
        for connection in list(self._all):
            connection.abort()
        self._idle.clear()
        for _ in range(100):
            await asyncio.sleep(0)
            if not self._all:
                return
