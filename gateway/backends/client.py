"""HTTP towards one backend: a pooled aiohttp session, patience, one retry on a stale connection, abort by closing.

Used by every adapter. Foreign exceptions end here: they leave as UpstreamError or BackendUnreachable.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import aiohttp

from gateway.backends.base import Target, Timeouts
from gateway.errors import BackendUnreachable, UpstreamError
from gateway.types import Spec

_LOST = (aiohttp.ClientError, ConnectionError, TimeoutError, OSError)
_STALE = (aiohttp.ServerDisconnectedError, ConnectionResetError, BrokenPipeError)


class HttpUpstream:
    """An answer over HTTP (see `Upstream`)."""

    __slots__ = ("_begun", "_content", "_on_close", "_patience", "_response", "_since", "_spec", "_timeouts", "_timer")

    def __init__(
        self,
        response: aiohttp.ClientResponse,
        timeouts: Timeouts,
        spec: Callable[[dict[str, Any]], Spec | None],
        on_close: Callable[[], None],
    ) -> None:
        self._response = response
        self._content = response.content
        self._timeouts = timeouts
        self._spec = spec
        self._on_close: Callable[[], None] | None = on_close
        self._patience = timeouts.first_token
        self._since: float | None = None
        self._begun = False
        self._timer: asyncio.TimerHandle | None = None

    async def read(self) -> bytes:
        """Return the whole body."""
        try:
            async with asyncio.timeout(self._patience):
                return await self._response.read()
        except TimeoutError as error:
            raise BackendUnreachable(f"no answer for {self._patience:g} s") from error
        except _LOST as error:
            raise BackendUnreachable(f"connection lost while reading the answer ({_name(error)})") from error

    async def chunk(self) -> bytes:
        """Return the next bytes, b"" at the end."""
        loop = asyncio.get_running_loop()
        self._since = loop.time()
        if self._timer is None:
            self._timer = loop.call_later(self._patience, self._look)
        try:
            data = await self._content.readany()
        except TimeoutError as error:
            raise BackendUnreachable(f"no token for {self._patience:g} s") from error
        except _LOST as error:
            raise BackendUnreachable(f"connection lost in mid-answer ({_name(error)})") from error
        self._since = None
        if not self._begun:
            self._begun = True
            self._patience = self._timeouts.between_tokens
            self._timer.cancel()
            self._timer = None
        return data

    def _look(self) -> None:
        """End the wait if it has lasted too long. One lazy timer per answer; one per chunk would cost too much."""
        loop = asyncio.get_running_loop()
        waited = 0.0 if self._since is None else loop.time() - self._since
        if waited >= self._patience:
            self._content.set_exception(TimeoutError())
        else:
            self._timer = loop.call_later(self._patience - waited, self._look)

    def spec(self, payload: dict[str, Any]) -> Spec | None:
        """Read acceptance and cost from the response."""
        return self._spec(payload)

    def close(self) -> None:
        """Drop the connection unless the answer is complete (then it is back in the pool already)."""
        if self._timer is not None:
            self._timer.cancel()
        self._response.close()
        if self._on_close is not None:
            done, self._on_close = self._on_close, None
            done()


class HttpClient:
    """Connections to one backend."""

    def __init__(self, target: Target) -> None:
        self.url = target.url.rstrip("/")
        self.timeouts = timeouts = target.timeouts
        self._limit = target.connection_limit
        self._headers = {"content-type": "application/json"}
        if target.token:
            self._headers["authorization"] = f"Bearer {target.token}"
        self._session: aiohttp.ClientSession | None = None
        self._generate = aiohttp.ClientTimeout(total=None, sock_connect=timeouts.connect)
        self._probe = aiohttp.ClientTimeout(total=max(2.0, timeouts.connect), sock_connect=timeouts.connect)

    def _connected(self) -> aiohttp.ClientSession:
        """Return the session, made on first use because it must be made inside the running loop."""
        if self._session is None:
            connector = aiohttp.TCPConnector(
                limit=self._limit, keepalive_timeout=self.timeouts.keepalive, ttl_dns_cache=10
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=True,
                skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding"),
            )
        return self._session

    async def post(self, path: str, body: bytes, headers: dict[str, str]) -> aiohttp.ClientResponse:
        """Send a body and return the response once its headers are there; one retry on a stale connection.

        Raises:
            UpstreamError: status 400 or above.
            BackendUnreachable: no answer, or none within the patience for a first token.
        """
        try:
            response = await self._send(path, body, headers)
        except _STALE:
            response = await self._retry(path, body, headers)
        except TimeoutError as error:
            raise BackendUnreachable(f"no answer from {self.url} within {self._patience(error)}") from error
        except _LOST as error:
            raise BackendUnreachable(f"cannot reach {self.url} ({_name(error)})") from error
        if response.status >= 400:
            raise await _refusal(response)
        return response

    async def _retry(self, path: str, body: bytes, headers: dict[str, str]) -> aiohttp.ClientResponse:
        """Send once more: the server had closed an idle connection just as we used it, so nothing was begun."""
        try:
            return await self._send(path, body, headers)
        except _LOST as error:
            raise BackendUnreachable(f"cannot reach {self.url} ({_name(error)})") from error

    async def _send(self, path: str, body: bytes, headers: dict[str, str]) -> aiohttp.ClientResponse:
        """Post under the timer for the first token, which is cheaper than a timeout inside aiohttp."""
        sent = self._connected().post(
            self.url + path,
            data=body,
            headers={**self._headers, **headers},
            timeout=self._generate,
            allow_redirects=False,
        )
        async with asyncio.timeout(self.timeouts.first_token):
            return await sent

    def _patience(self, error: BaseException) -> str:
        connecting = isinstance(error, aiohttp.ConnectionTimeoutError)
        return f"{self.timeouts.connect if connecting else self.timeouts.first_token:g} s"

    async def get(self, path: str) -> bytes:
        """Fetch a small document in the background.

        Raises:
            UpstreamError: status 400 or above.
            BackendUnreachable: no answer in time.
        """
        try:
            async with self._connected().get(self.url + path, headers=self._headers, timeout=self._probe) as response:
                body = await response.read()
        except _LOST as error:
            raise BackendUnreachable(f"cannot reach {self.url} ({_name(error)})") from error
        if response.status >= 400:
            raise UpstreamError(response.status, body, {})
        return body

    async def aclose(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None


async def _refusal(response: aiohttp.ClientResponse) -> UpstreamError:
    """Read an error answer whole; its connection goes back to the pool."""
    kept = {
        name.lower(): value
        for name, value in response.headers.items()
        if name.lower() in {"retry-after", "x-should-retry"}
    }
    try:
        body = await response.read()
    except _LOST:
        body = json.dumps({"error": {"message": "the backend's error message was lost"}}).encode()
    return UpstreamError(response.status, body, kept)


def _name(error: BaseException) -> str:
    return str(error).split("\n", 1)[0][:120] or type(error).__name__
