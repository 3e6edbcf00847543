"""What comes in over ASGI: the body, a request id that is sane and unique, and the moment at which a client leaves."""

from __future__ import annotations

import asyncio
import os
import re
from collections import OrderedDict
from itertools import count

from litestar.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import InvalidRequest

_SANE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/+=-]{0,127}")
_OURS = "req_" + os.urandom(10).hex()
_COUNT = count()
_REMEMBERED = 8192
_LOOK_AFTER_S = 0.02


class ClientGone(Exception):  # not an error: nobody is left to be told
    """The client left before its request was complete."""


def request_id_of(given: str | None) -> str:
    """Return the client's request id if it is sane, else a fresh one.

    Fresh ones are a number of this process's own and a count: asking the kernel each time gives other threads the turn.
    """
    return given if given is not None and _SANE.fullmatch(given) else f"{_OURS}{next(_COUNT):08x}"


class RequestIds:
    """Honours the client's `x-request-id`; makes the record's id unique where the same one is sent again."""

    def __init__(self) -> None:
        self._seen: OrderedDict[str, None] = OrderedDict()

    def take(self, given: str | None) -> tuple[str, str]:
        """Return the id to answer with and the id to record under."""
        made = request_id_of(given)
        if given is None or made != given:
            return made, made
        if given in self._seen:
            return given, f"{given}~{os.urandom(4).hex()}"
        self._seen[given] = None
        if len(self._seen) > _REMEMBERED:
            self._seen.popitem(last=False)
        return given, given


async def read_body(receive: Receive, limit: int) -> bytes:
    """Read a body of at most `limit` bytes. Raises InvalidRequest (413) or ClientGone."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientGone
        part = message["body"]
        size += len(part)
        if size > limit:
            error = InvalidRequest(f"the body is larger than {limit} bytes", code="request_too_large")
            error.status = 413
            raise error
        if not message["more_body"]:
            return bytes(part) if not parts else b"".join((*parts, part))
        parts.append(part)


def with_request_id(app: ASGIApp) -> ASGIApp:
    """Middleware of all routes but the generating ones, which answer with the id themselves."""

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        given = dict(scope["headers"]).get(b"x-request-id")
        made = request_id_of(given.decode("latin-1") if given else None).encode()

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-request-id", made)]
            await send(message)

        await app(scope, receive, sending)

    return wrapped


class ClientWatch:
    """Cancels the task that serves a request when its client leaves.

    It begins to look after a moment: most of its cost is starting and ending it, and an answer at once needs none.
    """

    __slots__ = ("_begin", "_receive", "_serving", "_watcher", "gone")

    def __init__(self, receive: Receive) -> None:
        self.gone = False
        self._receive = receive
        self._serving = asyncio.current_task()
        self._watcher: asyncio.Task[None] | None = None
        self._begin = asyncio.get_running_loop().call_later(_LOOK_AFTER_S, self._start)

    def _start(self) -> None:
        self._watcher = asyncio.get_running_loop().create_task(self._wait())

    async def _wait(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if self._serving is not None:
            self.gone = True
            self._serving.cancel()

    def swallow(self) -> None:
        """Take the cancellation back, so that the serving task can end normally."""
        if self._serving is not None:
            self._serving.uncancel()

    def close(self) -> None:
        """Stop watching."""
        self._serving = None
        self._begin.cancel()
        if self._watcher is not None:
            self._watcher.cancel()
