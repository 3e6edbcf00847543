"""Head and body of an answer in one write, and nothing held up that should go out."""

import asyncio

from gateway.api.protocol import HeadHolder

HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"


class Written(asyncio.Transport):
    """A transport that only remembers."""

    def __init__(self):
        self.parts = []
        self.closed = False

    def write(self, data):
        assert not self.closed
        self.parts.append(data)

    def close(self):
        self.closed = True

    def is_closing(self):
        return self.closed


async def test_head_and_body_are_one_write():
    holder = HeadHolder(written := Written(), asyncio.get_running_loop())
    holder.write(HEAD)
    holder.write(b"ok")
    await asyncio.sleep(0)
    assert written.parts == [HEAD + b"ok"]


async def test_a_head_alone_goes_out_in_the_same_turn_of_the_loop():
    holder = HeadHolder(written := Written(), asyncio.get_running_loop())
    holder.write(HEAD)
    assert written.parts == []
    await asyncio.sleep(0)
    assert written.parts == [HEAD]


async def test_chunks_go_out_at_once():
    holder = HeadHolder(written := Written(), asyncio.get_running_loop())
    holder.write(HEAD)
    for chunk in (b"1\r\na\r\n", b"1\r\nb\r\n", b"0\r\n\r\n"):
        holder.write(chunk)
    assert written.parts == [HEAD + b"1\r\na\r\n", b"1\r\nb\r\n", b"0\r\n\r\n"]


async def test_a_body_that_looks_like_a_head_arrives():
    holder = HeadHolder(written := Written(), asyncio.get_running_loop())
    for part in (HEAD, b"HTTP/1.1 again", b"HTTP/1.1 and again"):
        holder.write(part)
    await asyncio.sleep(0)
    assert b"".join(written.parts) == HEAD + b"HTTP/1.1 againHTTP/1.1 and again"


async def test_closing_sends_what_is_held():
    holder = HeadHolder(written := Written(), asyncio.get_running_loop())
    holder.write(HEAD)
    holder.close()
    assert written.parts == [HEAD]
    assert written.closed
    assert holder.is_closing()
