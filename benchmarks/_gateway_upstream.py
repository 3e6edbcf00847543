"""A deterministic OpenAI-like server that answers at once, or streams 64 chunks: the upstream of `gateway_overhead`.

Run as `python -m benchmarks._gateway_upstream`; prints its port. Raw asyncio, so that it is never what limits.
"""

from __future__ import annotations

import asyncio
import json

CHUNKS = 64
USAGE = {"prompt_tokens": 18, "completion_tokens": CHUNKS, "total_tokens": 18 + CHUNKS}
MODELS = json.dumps({"object": "list", "data": [{"id": "bench", "object": "model", "max_model_len": 8192}]}).encode()


def _chunk(delta: dict[str, str], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    body = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "bench", "choices": [choice]}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def _answer() -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": "hello world"}, "finish_reason": "stop"}
    head = {"id": "c", "object": "chat.completion", "created": 1, "model": "bench"}
    return json.dumps({**head, "choices": [choice], "usage": USAGE}).encode()


def _fixed(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)


ANSWER = _fixed(_answer())
LISTED = _fixed(MODELS)
EVENTS = [_chunk({"content": "tok "}) for _ in range(CHUNKS - 1)] + [_chunk({"content": "end"}, "stop")]
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
STREAM = STREAM_HEAD + b"".join(b"%x\r\n%s\r\n" % (len(e), e) for e in [*EVENTS, b"data: [DONE]\n\n"]) + b"0\r\n\r\n"


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the requests of one connection."""
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(
                (int(line[15:]) for line in head.split(b"\r\n") if line[:15].lower() == b"content-length:"), 0
            )
            body = await reader.readexactly(length) if length else b""
            if head.startswith(b"GET"):
                writer.write(LISTED)
            else:
                writer.write(STREAM if b'"stream": true' in body or b'"stream":true' in body else ANSWER)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def main() -> None:
    """Serve until ended."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
