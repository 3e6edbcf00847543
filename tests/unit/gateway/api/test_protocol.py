"""Head and body of an answer in one write, requests one after the other on a connection, and an end to idle ones."""

import asyncio
import logging

import pytest
import uvicorn
from uvicorn.server import ServerState

from gateway.api.protocol import GatewayProtocol

ASKED = b"POST /v1/chat/completions HTTP/1.1\r\nhost: here\r\ncontent-length: 4\r\n\r\nbody"
START = {"type": "http.response.start", "status": 200}
SIZED = {**START, "headers": [(b"content-type", b"text/plain"), (b"content-length", b"2")]}
STREAMED = {**START, "headers": [(b"content-type", b"text/event-stream")]}


class Written(asyncio.Transport):
    """A transport that only remembers."""

    def __init__(self):
        super().__init__()
        self.parts = []
        self.ended = asyncio.Event()

    def write(self, data):
        assert not self.ended.is_set()
        self.parts.append(data)

    def close(self):
        self.ended.set()

    def is_closing(self):
        return self.ended.is_set()

    def pause_reading(self):
        pass

    def resume_reading(self):
        pass


def body(data, *, more=False):
    return {"type": "http.response.body", "body": data, "more_body": more}


def connected(app, **options):
    config = uvicorn.Config(app, http=GatewayProtocol, lifespan="off", log_config=None, **options)
    protocol = GatewayProtocol(config=config, server_state=ServerState(), app_state={})
    protocol.connection_made(written := Written())
    return protocol, written


def sending(*messages, seen=None):
    async def app(scope, receive, send):
        message = await receive()
        if seen is not None:
            seen.append((scope["method"], scope["path"], scope["http_version"], message["body"]))
        for each in messages:
            await send(each)

    return app


async def settled(protocol):
    await asyncio.sleep(0)
    for task in protocol.tasks.copy():
        await task


async def test_head_and_body_are_one_write():
    seen = []
    protocol, written = connected(sending(SIZED, body(b"ok"), seen=seen))
    protocol.data_received(ASKED)
    await settled(protocol)
    assert written.parts == [b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 2\r\n\r\nok"]
    assert seen == [("POST", "/v1/chat/completions", "1.1", b"body")]
    assert not written.is_closing()


async def test_a_stream_goes_out_piece_by_piece_and_ends():
    protocol, written = connected(sending(STREAMED, body(b"abc", more=True), body(b"de", more=True), body(b"")))
    protocol.data_received(ASKED)
    await settled(protocol)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    assert written.parts == [head + b"3\r\nabc\r\n", b"2\r\nde\r\n", b"0\r\n\r\n"]


async def test_requests_that_come_at_once_are_answered_in_order():
    seen = []
    protocol, written = connected(sending(SIZED, body(b"ok"), seen=seen))
    protocol.data_received(ASKED + ASKED.replace(b"body", b"more"))
    await settled(protocol)
    assert b"".join(written.parts).count(b"HTTP/1.1 200 OK") == 2
    assert [text for *_, text in seen] == [b"body", b"more"]


async def test_a_client_that_does_not_keep_its_connection_is_told_and_let_go():
    protocol, written = connected(sending(SIZED, body(b"ok")))
    protocol.data_received(ASKED.replace(b"host", b"connection: close\r\nhost"))
    await settled(protocol)
    assert b"\r\nconnection: close\r\n" in written.parts[0]
    assert written.is_closing()


async def test_an_application_that_fails_before_its_answer_is_a_500(caplog):
    async def app(scope, receive, send):
        raise RuntimeError("broken")

    caplog.set_level(logging.CRITICAL, "uvicorn.error")
    protocol, written = connected(app)
    protocol.data_received(ASKED)
    await settled(protocol)
    assert written.parts[0].startswith(b"HTTP/1.1 500 ")


async def test_other_routes_are_left_to_uvicorn():
    protocol, written = connected(sending({**SIZED, "headers": [(b"x-broken", b"a\r\nb")]}, body(b"ok")))
    protocol.data_received(b"GET /v1/models HTTP/1.1\r\nhost: here\r\n\r\n")
    await settled(protocol)
    assert b"x-broken" not in b"".join(written.parts)


@pytest.mark.parametrize("requests", [1, 3])
async def test_a_connection_that_stays_idle_is_closed(requests):
    protocol, written = connected(sending(SIZED, body(b"ok")), timeout_keep_alive=0.05)
    for _ in range(requests):
        protocol.data_received(ASKED)
        await settled(protocol)
    assert not written.is_closing()
    await asyncio.wait_for(written.ended.wait(), 10)


async def test_a_connection_at_work_is_not_idle():
    answer = asyncio.Event()

    async def app(scope, receive, send):
        await answer.wait()
        await send(SIZED)
        await send(body(b"ok"))

    protocol, written = connected(app, timeout_keep_alive=0.05)
    answer.set()
    protocol.data_received(ASKED)
    await settled(protocol)
    answer.clear()
    protocol.data_received(ASKED)
    await asyncio.sleep(0.15)
    assert not written.is_closing()
    answer.set()
    await settled(protocol)
    assert len(written.parts) == 2
