"""The server's HTTP protocol, with less work for the generating endpoints; given to uvicorn by `cli/gateway.py`.

uvicorn checks every header of an answer by regular expressions, writes the head as soon as the application names it
and the body after that, and sets a timer after each answer. On the routes that take nearly all requests that costs as
much as deciding them. Here head and body go out in one write, headers are taken at the word of `headers.py`, and the
timer of a kept connection is set again only when it rings too early.
"""

from __future__ import annotations

import asyncio
from asyncio.events import TimerHandle
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from gateway.api.routes import GENERATING

if TYPE_CHECKING:
    from uvicorn._types import ASGISendEvent

_URLS = {path.encode(): path for path in GENERATING}


class GatewayCycle(RequestResponseCycle):
    """A request to a generating endpoint and its answer."""

    _head = b""
    """What begins the answer, until the body's first piece goes out with it: that follows without a wait."""

    async def send(self, message: ASGISendEvent) -> None:
        """Send a part of the answer (the application calls this)."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        if message["type"] == "http.response.start":
            self._begin(message["status"], [*self.default_headers, *message["headers"]])
        elif message["type"] == "http.response.body":
            self._write(message["body"], last=not message["more_body"])

    def _begin(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.response_started, self.waiting_for_100_continue = True, False
        lines = [b"%s: %s\r\n" % header for header in headers]
        self.chunked_encoding = not any(name == b"content-length" for name, _ in headers)
        if self.chunked_encoding:
            lines.append(b"transfer-encoding: chunked\r\n")
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        self._head = b"".join((STATUS_LINE[status], *lines, b"\r\n"))

    def _write(self, body: bytes, *, last: bool) -> None:
        if self.chunked_encoding:
            end = b"0\r\n\r\n" if last else b""
            body = b"%x\r\n%b\r\n%b" % (len(body), body, end) if body else end
        self.transport.write(self._head + body)
        self._head = b""
        if last:
            self.response_complete = True
            self.message_event.set()
            if not self.keep_alive:
                self.transport.close()
            self.on_response()


class GatewayProtocol(HttpToolsProtocol):
    """uvicorn's protocol with such cycles."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401  # as uvicorn has it
        super().__init__(*args, **kwargs)
        self._idle_since: float | None = None
        self._timer: TimerHandle | None = None

    def on_headers_complete(self) -> None:
        """Begin to answer a request (the parser calls this)."""
        path = _URLS.get(self.url)
        if path is None or _at_work(self.cycle) or self.parser.should_upgrade() or self.limit_concurrency is not None:
            super().on_headers_complete()
            return
        version = self.parser.get_http_version()
        scope = self.scope
        scope["method"], scope["http_version"] = self.parser.get_method().decode("ascii"), version
        scope["path"], scope["raw_path"], scope["query_string"] = self.root_path + path, self.url, b""
        self.cycle = GatewayCycle(
            scope=scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue,
            keep_alive=version != "1.0" and self.parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )
        self._start_asgi_task(self.cycle, self.app)

    def on_response_complete(self) -> None:
        """Go on to the next request, or wait for one (the cycle calls this)."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
            return
        self._idle_since = self.loop.time()
        if self._timer is None:
            self._timer = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def _unset_keepalive_if_required(self) -> None:
        self._idle_since = None

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection that has been idle for long enough, or look again later (the loop calls this)."""
        self._timer = None
        if self._idle_since is None or self.transport.is_closing():
            return
        left = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left <= 0:
            self.transport.close()
        else:
            self._timer = self.loop.call_later(left, self.timeout_keep_alive_handler)


def _at_work(cycle: RequestResponseCycle | None) -> bool:
    """Return whether the request before this one still waits for its answer."""
    return cycle is not None and not cycle.response_complete
