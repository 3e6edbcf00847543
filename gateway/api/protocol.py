"""The server's HTTP protocol with head and body of an answer in one write; given to uvicorn by `cli/gateway.py`.

uvicorn writes the head as soon as the application names it, and the body after that: two system calls and two wake-ups
of the client where one does. Streams are not held up: what is written after the head goes out at once.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class HeadHolder:
    """A transport that keeps a head back until the next write, or until the event loop comes round."""

    __slots__ = ("_held", "_loop", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held = b""

    def write(self, data: bytes) -> None:
        """Write, or keep what begins an answer."""
        if self._held:
            data, self._held = self._held + data, b""
        elif data.startswith(b"HTTP/1."):
            self._held = data
            self._loop.call_soon(self._flush)
            return
        self._transport.write(data)

    def close(self) -> None:
        """Close after everything is written."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._held:
            data, self._held = self._held, b""
            self._transport.write(data)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  # whatever else the transport has
        return getattr(self._transport, name)


class GatewayProtocol(HttpToolsProtocol):
    """uvicorn's protocol on such a transport."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Wrap the transport (asyncio calls this)."""
        super().connection_made(transport)
        self.transport = cast("asyncio.Transport", HeadHolder(transport, self.loop))
