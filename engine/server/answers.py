"""One HTTP answer, streamed or whole, that ends its sequences when the client leaves. Made by the handlers.

An ASGI application of its own rather than Litestar's `Stream`: it watches for the disconnect in both cases, and gives
the sequences up in a `finally` without awaiting, which no cancellation can interrupt.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from engine.errors import EngineError
from engine.server.errors import describe
from engine.server.render import Renderer
from engine.server.service import Generation

if TYPE_CHECKING:
    from litestar.types import Receive, Scope, Send

_encoder = msgspec.json.Encoder()
DONE = b"data: [DONE]\n\n"


def event(body: Any) -> bytes:  # noqa: ANN401 - any wire struct
    """Return one server-sent event."""
    return b"data: %b\n\n" % _encoder.encode(body)


class Answer:
    """Runs a generation and writes it; the base of both kinds."""

    def __init__(self, generation: Generation, renderer: Renderer, headers: Mapping[str, str]) -> None:
        self._generation = generation
        self._renderer = renderer
        self._headers = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve as ASGI application. Errors before the first byte propagate, to become an error response."""
        del scope
        work = asyncio.ensure_future(self._write(send))
        gone = asyncio.ensure_future(_disconnect(receive))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        finally:
            self._generation.close()
            work.cancel()
            gone.cancel()

    async def _write(self, send: Send) -> None:
        raise NotImplementedError

    async def _start(self, send: Send, content_type: bytes, *more: tuple[bytes, bytes]) -> None:
        headers = [(b"content-type", content_type), *more, *self._headers]
        await send({"type": "http.response.start", "status": 200, "headers": headers})


class WholeAnswer(Answer):
    """One JSON body when everything is there."""

    async def _write(self, send: Send) -> None:
        async for index, output in self._generation:
            self._renderer.take(index, output)
        body = _encoder.encode(self._renderer.response())
        await self._start(send, b"application/json", (b"content-length", b"%d" % len(body)))
        await send({"type": "http.response.body", "body": body, "more_body": False})


class StreamedAnswer(Answer):
    """Server-sent events. The status goes out with the first output: what fails before has a status of its own."""

    def __init__(
        self, generation: Generation, renderer: Renderer, headers: Mapping[str, str], *, include_usage: bool
    ) -> None:
        super().__init__(generation, renderer, headers)
        self._include_usage = include_usage

    async def _write(self, send: Send) -> None:
        started = False
        try:
            async for chunk in self._chunks():
                if not started:
                    await self._start(send, b"text/event-stream; charset=utf-8", (b"cache-control", b"no-cache"))
                    started = True
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        except EngineError as error:
            if not started:
                raise
            _, body, _ = describe(error)
            await send({"type": "http.response.body", "body": event(body), "more_body": True})
        await send({"type": "http.response.body", "body": DONE, "more_body": False})

    async def _chunks(self) -> AsyncIterator[bytes]:
        async for index, output in self._generation:
            chunk = self._renderer.chunk(index, output)
            if chunk is not None:
                yield event(chunk)
        if self._include_usage:
            yield event(self._renderer.usage_chunk())


async def _disconnect(receive: Receive) -> None:
    """Return when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass
