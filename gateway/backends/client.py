"""HTTP towards one backend: requests over kept connections, patience, one retry on a stale one, abort by closing.

Used by every adapter. Requests go over `wire.py`; probes, which are rare, over aiohttp. Foreign exceptions end here:
they leave as UpstreamError or BackendUnreachable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import aiohttp

from gateway.backends.base import Target, Timeouts
from gateway.backends.wire import Answer, Connection, ConnectionBroken, Pool
from gateway.errors import BackendUnreachable, UpstreamError
from gateway.types import Spec

_LOST = (aiohttp.ClientError, ConnectionError, TimeoutError, OSError)
_KEPT = ("retry-after", "x-should-retry")
"""Headers of an error that matter to the client."""


class CannotConnect(BackendUnreachable):
    """Nobody listens there: the one failure that says at once that a backend is down."""


class HttpUpstream:
    """An answer over HTTP (see `Upstream`)."""

    __slots__ = (
        "_answer", "_held", "_on_close", "_patience", "_since", "_spec", "_timeouts", "_timer", "began", "on_spec",
        "streamed",
    )  # fmt: skip

    def __init__(
        self,
        answer: Answer,
        timeouts: Timeouts,
        spec: Callable[[dict[str, Any]], Spec | None],
        on_close: Callable[[], None],
    ) -> None:
        self._answer = answer
        self._timeouts = timeouts
        self._spec = spec
        self._on_close: Callable[[], None] | None = on_close
        self._patience = timeouts.first_token
        self.streamed = False
        self._held: bytes | None = None
        """What came already, for the one who asks next."""
        self.on_spec: Callable[[dict[str, Any], Spec | None], None] | None = None
        """Told what `spec` has read."""
        loop = asyncio.get_running_loop()
        self.began = loop.time()
        """When the request was sent; of a stream, when its first bytes came."""
        self._since: float | None = self.began
        self._timer = loop.call_later(self._patience, self._look)

    async def head(self) -> int:
        """Wait for the status. Raises BackendUnreachable or ConnectionBroken (stale)."""
        try:
            await self._answer.head()
        except TimeoutError as error:
            raise BackendUnreachable(f"no answer for {self._patience:g} s") from error
        return self._answer.status

    async def first(self, *, stream: bool) -> None:
        """Wait for the first bytes of a stream, or for a whole body: a server sends its head long before them."""
        self._held = await (self.chunk() if stream else self.read())

    def _take(self) -> bytes:
        held, self._held = self._held or b"", None
        return held

    async def read(self) -> bytes:
        """Return the whole body."""
        if self._held is not None:
            return self._take()
        try:
            return await self._answer.read()
        except TimeoutError as error:
            raise BackendUnreachable(f"no answer for {self._patience:g} s") from error
        except ConnectionBroken as error:
            raise BackendUnreachable(f"connection lost while reading the answer ({error})") from error

    async def chunk(self) -> bytes:
        """Return the next bytes, b"" at the end."""
        if self._held is not None:
            return self._take()
        loop = asyncio.get_running_loop()
        self._since = loop.time()
        try:
            data = await self._answer.chunk()
        except TimeoutError as error:
            raise BackendUnreachable(f"no token for {self._patience:g} s") from error
        except ConnectionBroken as error:
            raise BackendUnreachable(f"connection lost in mid-answer ({error})") from error
        self._since = None
        if not self.streamed:
            self.streamed, self.began = True, loop.time()
            self._patience = self._timeouts.between_tokens
            self._timer.cancel()
            self._timer = loop.call_later(self._patience, self._look)
        return data

    @property
    def finished(self) -> bool:
        """Whether everything has arrived and was taken."""
        return self._answer.taken and self._held is None

    def _look(self) -> None:
        """End the wait if it has lasted too long. One lazy timer per answer; one per chunk would cost too much."""
        loop = asyncio.get_running_loop()
        waited = 0.0 if self._since is None else loop.time() - self._since
        if waited >= self._patience:
            self._answer.fail(TimeoutError())
        else:
            self._timer = loop.call_later(self._patience - waited, self._look)

    def took(self) -> float:
        """Return the seconds since the answer began: of a stream without its wait for the first token."""
        return asyncio.get_running_loop().time() - self.began

    def headers(self, names: Iterable[str]) -> dict[str, str]:
        """Return these headers of the answer, where it has them."""
        found = self._answer.headers
        return {name: found[name.encode()].decode("latin-1") for name in names if name.encode() in found}

    def spec(self, payload: dict[str, Any]) -> Spec | None:
        """Read acceptance and cost from the response."""
        spec = self._spec(payload)
        if self.on_spec is not None:
            self.on_spec(payload, spec)
        return spec

    def forget(self) -> None:
        """Give the answer up before anyone has got it."""
        self._on_close = None
        self.close()

    def close(self) -> None:
        """Drop the connection unless the answer is complete (then it serves others already)."""
        self._timer.cancel()
        self._answer.abort()
        if self._on_close is not None:
            done, self._on_close = self._on_close, None
            done()


class HttpClient:
    """Connections to one backend."""

    def __init__(self, target: Target) -> None:
        self.url = target.url.rstrip("/")
        self.timeouts = timeouts = target.timeouts
        self._pool = Pool(self.url, keepalive=timeouts.keepalive, connect_timeout=timeouts.connect)
        self._slots = asyncio.Semaphore(target.connection_limit) if target.connection_limit else None
        self._token = {"authorization": f"Bearer {target.token}"} if target.token else {}
        fixed = {"host": self._pool.authority, "content-type": "application/json", **self._token}
        self._fixed = "".join(f"{name}: {value}\r\n" for name, value in fixed.items())
        self._session: aiohttp.ClientSession | None = None
        self._probe = aiohttp.ClientTimeout(total=max(2.0, timeouts.connect), sock_connect=timeouts.connect)

    async def post(
        self,
        path: str,
        body: bytes,
        headers: dict[str, str],
        spec: Callable[[dict[str, Any]], Spec | None],
        on_close: Callable[[], None],
    ) -> HttpUpstream:
        """Send a body and return the answer once its head is there; one retry on a stale connection.

        Raises:
            UpstreamError: status 300 or above.
            BackendUnreachable: no answer, or none within the patience for a first token.
        """
        more = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        head = f"POST {self._pool.path}{path} HTTP/1.1\r\n{self._fixed}{more}content-length: {len(body)}\r\n\r\n"
        raw = head.encode("latin-1", "replace")
        if self._slots is None:
            return await self._answered(raw, body, spec, on_close)
        await self._slots.acquire()

        def release() -> None:
            self._slots.release()  # type: ignore[union-attr]  # checked above
            on_close()

        try:
            return await self._answered(raw, body, spec, release)
        except BaseException:
            self._slots.release()
            raise

    async def _answered(
        self, raw: bytes, body: bytes, spec: Callable[[dict[str, Any]], Spec | None], on_close: Callable[[], None]
    ) -> HttpUpstream:
        """Send over a kept connection, or over a new one where there is none or the kept one proves stale."""
        kept = self._pool.take()
        if kept is not None:
            try:
                return await self._over(kept, raw, body, spec, on_close)
            except _Stale:  # every request passes here: `suppress` costs three calls
                pass
        try:
            fresh = await self._pool.connect()
        except TimeoutError as error:
            raise CannotConnect(f"cannot reach {self.url} within {self.timeouts.connect:g} s") from error
        except OSError as error:
            raise CannotConnect(f"cannot reach {self.url} ({_name(error)})") from error
        return await self._over(fresh, raw, body, spec, on_close)

    async def _over(
        self,
        connection: Connection,
        raw: bytes,
        body: bytes,
        spec: Callable[[dict[str, Any]], Spec | None],
        on_close: Callable[[], None],
    ) -> HttpUpstream:
        """Send over this connection. Raises _Stale where the server had closed it just as we used it."""
        upstream: HttpUpstream | None = None
        try:
            upstream = HttpUpstream(connection.send(raw, body), self.timeouts, spec, on_close)
            status = await upstream.head()
            if status >= 300:
                raise UpstreamError(status, await upstream.read(), upstream.headers(_KEPT))
        except ConnectionBroken as error:
            _drop(upstream)
            if error.stale:
                raise _Stale from error
            raise BackendUnreachable(f"no answer from {self.url} ({error})") from error
        except BaseException:
            _drop(upstream)
            raise
        return upstream

    async def get(self, path: str) -> bytes:
        """Fetch a small document in the background (see `fetch`)."""
        return (await self.fetch(path))[0]

    async def fetch(self, path: str) -> tuple[bytes, Mapping[str, str]]:
        """Fetch a small document and its headers in the background.

        Raises:
            UpstreamError: status 400 or above.
            BackendUnreachable: no answer in time.
        """
        if self._session is None:
            self._session = aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar())
        try:
            async with self._session.get(self.url + path, headers=self._token, timeout=self._probe) as response:
                body = await response.read()
        except aiohttp.ClientConnectorError as error:
            raise CannotConnect(f"cannot reach {self.url} ({_name(error)})") from error
        except _LOST as error:
            raise BackendUnreachable(f"no answer from {self.url} ({_name(error)})") from error
        if response.status >= 400:
            raise UpstreamError(response.status, body, {})
        return body, response.headers

    async def aclose(self) -> None:
        """Close all connections."""
        await self._pool.aclose()
        if self._session is not None:
            await self._session.close()
            self._session = None


class _Stale(Exception):  # an instruction to try again
    """A kept connection was closed by the server before it took the request."""


def _drop(upstream: HttpUpstream | None) -> None:
    """Give an answer up without telling its owner, who has not got it yet."""
    if upstream is not None:
        upstream.forget()


def _name(error: BaseException) -> str:
    return str(error).split("\n", 1)[0][:120] or type(error).__name__
