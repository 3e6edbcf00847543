"""The lean HTTP client against raw sockets: every framing, reuse, staleness, a slow reader, servers that misbehave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from gateway.backends.base import Target, Timeouts
from gateway.backends.client import HttpClient, HttpUpstream
from gateway.backends.wire import ConnectionBroken, Pool
from gateway.errors import BackendUnreachable, UpstreamError

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"


@asynccontextmanager
async def server(serve: Serve) -> AsyncIterator[str]:
    """Run a raw server; yields its URL."""

    async def guarded(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    listening = await asyncio.start_server(guarded, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    finally:
        listening.close()
        getattr(listening, "close_clients", lambda: None)()  # Python 3.13 waits for them otherwise
        await listening.wait_closed()


async def read_request(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Read one request; returns head and body."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"content-length:"))
    return head, await reader.readexactly(length)


@asynccontextmanager
async def client(url: str, *, limit: int = 0, token: str = "", **timeouts: float) -> AsyncIterator[HttpClient]:
    """A client of that server."""
    made = HttpClient(Target("b", url, token=token, timeouts=Timeouts(**timeouts), connection_limit=limit))
    try:
        yield made
    finally:
        await made.aclose()


async def post(made: HttpClient, body: bytes = b"{}", **headers: str) -> HttpUpstream:
    return await made.post("/v1/chat/completions", body, headers, lambda _: None, lambda: None)


async def drain(upstream: HttpUpstream) -> bytes:
    parts = []
    while part := await upstream.chunk():
        parts.append(part)
    upstream.close()
    return b"".join(parts)


@pytest.mark.parametrize(
    "raw",
    [
        OK,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\nhello",
        b"HTTP/1.0 200 OK\r\nx: y\r\n\r\nhello",
        b"HTTP/1.1 100 Continue\r\n\r\n" + OK,
        b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + OK,
    ],
    ids=["sized", "chunked", "until closed", "1.0", "100", "103"],
)
@pytest.mark.parametrize("step", [1, 7, 10_000])
async def test_every_framing_in_any_pieces(raw: bytes, step: int) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        for at in range(0, len(raw), step):
            writer.write(raw[at : at + step])
            await writer.drain()
            if step < 10:
                await asyncio.sleep(0)

    async with server(serve) as url, client(url) as made:
        assert await drain(await post(made)) == b"hello"
        assert await (await post(made)).read() == b"hello"


async def test_a_connection_is_used_again_and_carries_what_it_should() -> None:
    heads: list[bytes] = []
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while True:
            head, body = await read_request(reader)
            heads.append(head)
            assert body == b'{"a": 1}'
            writer.write(OK)

    async with server(serve) as url, client(url + "/base/", token="secret", keepalive=60.0) as made:
        for _ in range(3):
            assert await drain(await post(made, b'{"a": 1}', **{"x-request-id": "r1"})) == b"hello"
    assert connections == 1
    lines = heads[0].decode().split("\r\n")
    assert lines[0] == "POST /base/v1/chat/completions HTTP/1.1"
    assert {"authorization: Bearer secret", "x-request-id: r1", "content-type: application/json"} <= set(lines)
    assert any(line.startswith("host: 127.0.0.1:") for line in lines)


@pytest.mark.parametrize("after", ["request", "answer"])
async def test_a_stale_connection_is_replaced_once(after: str) -> None:
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await read_request(reader)
        writer.write(OK)
        await writer.drain()
        if after == "request":
            await read_request(reader)  # takes the second request and closes without a word

    async with server(serve) as url, client(url) as made:
        assert await drain(await post(made)) == b"hello"
        assert await drain(await post(made)) == b"hello"
    assert connections == 2


async def test_a_new_connection_that_is_closed_is_not_tried_again() -> None:
    requests = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal requests
        await read_request(reader)
        requests += 1

    async with server(serve) as url, client(url) as made:
        with pytest.raises(BackendUnreachable, match="closed the connection"):
            await post(made)
    assert requests == 1


async def test_idle_connections_are_dropped_before_the_server_would() -> None:
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while True:
            await read_request(reader)
            writer.write(OK)

    async with server(serve) as url, client(url, keepalive=0.05) as made:
        await drain(await post(made))
        await asyncio.sleep(0.1)
        await drain(await post(made))
    assert connections == 2


@pytest.mark.parametrize(
    "raw", [b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n", b"", b"HTTP/1.1 200 OK\r\ncontent-"]
)
async def test_a_server_that_speaks_no_http_is_unreachable(raw: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(raw)

    async with server(serve) as url, client(url) as made:
        with pytest.raises(BackendUnreachable):
            await post(made)


async def test_a_body_cut_short_is_told() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\nhello")

    async with server(serve) as url, client(url) as made:
        upstream = await post(made)
        assert await upstream.chunk() == b"hello"
        with pytest.raises(BackendUnreachable, match="mid-answer"):
            await upstream.chunk()
        with pytest.raises(BackendUnreachable, match="connection lost"):
            await (await post(made)).read()


async def test_an_error_status_carries_body_and_retry_after() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 503 No\r\nRetry-After: 7\r\nset-cookie: x\r\ncontent-length: 4\r\n\r\nbusy")

    async with server(serve) as url, client(url) as made:
        with pytest.raises(UpstreamError) as caught:
            await post(made)
    assert (caught.value.status, caught.value.body, caught.value.headers) == (503, b"busy", {"retry-after": "7"})


async def test_a_slow_reader_makes_the_server_wait() -> None:
    sent = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 50000000\r\n\r\n")
        for _ in range(500):
            writer.write(b"x" * 100_000)
            await writer.drain()
            sent += 100_000

    async with server(serve) as url, client(url) as made:
        upstream = await post(made)
        await upstream.chunk()
        await asyncio.sleep(0.2)
        assert sent < 25_000_000
        assert sum([len(part) async for part in parts(upstream)]) > 49_000_000
        assert sent == 50_000_000


async def parts(upstream: HttpUpstream) -> AsyncIterator[bytes]:
    while part := await upstream.chunk():
        yield part


async def test_closing_aborts_and_tells_once() -> None:
    gone = asyncio.Event()
    told = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\nhello")
        assert await reader.read() == b""
        gone.set()

    async with server(serve) as url, client(url) as made:
        upstream = await made.post("/x", b"", {}, lambda _: None, lambda: told.append(1))
        upstream.close()
        upstream.close()
        await asyncio.wait_for(gone.wait(), 60)
    assert told == [1]


async def test_the_connection_limit_holds() -> None:
    running = most = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal running, most
        while True:
            await read_request(reader)
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.02)
            running -= 1
            writer.write(OK)

    async def one(made: HttpClient) -> bytes:
        return await drain(await post(made))

    async with server(serve) as url, client(url, limit=2) as made:
        assert await asyncio.gather(*(one(made) for _ in range(8))) == [b"hello"] * 8
    assert most == 2


async def test_nobody_listens() -> None:
    async with client("http://127.0.0.1:9", connect=0.5) as made:
        with pytest.raises(BackendUnreachable, match="cannot reach"):
            await post(made)
        with pytest.raises(BackendUnreachable, match="cannot reach"):
            await made.get("/v1/models")


async def test_a_closed_connection_refuses_to_send() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with server(serve) as url:
        pool = Pool(url, keepalive=4, connect_timeout=1)
        connection = await pool.connect()
        await pool.aclose()
        with pytest.raises(ConnectionBroken):
            connection.send(b"", b"")
