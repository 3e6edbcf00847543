"""The floor that `gateway_overhead` compares with: a Litestar application that only forwards, with an aiohttp client.

Run as `python -m benchmarks._gateway_floor UPSTREAM`; prints its port. One worker under uvicorn, as the gateway.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec
import uvicorn
from litestar import Litestar, Request, Response, post
from litestar.datastructures import State
from litestar.response import Stream

HEADERS = {"content-type": "application/json"}
_session: list[aiohttp.ClientSession] = []


@post("/v1/chat/completions", status_code=200)
async def chat(request: Request[Any, Any, State]) -> Response[bytes] | Stream:
    """Forward one request, streamed or not."""
    raw = await request.body()
    url, session = sys.argv[1] + "/v1/chat/completions", _session[0]
    if msgspec.json.decode(raw).get("stream"):

        async def chunks() -> AsyncIterator[bytes]:
            async with session.post(url, data=raw, headers=HEADERS) as answer:
                async for part in answer.content.iter_any():
                    yield part

        return Stream(chunks(), media_type="text/event-stream")
    async with session.post(url, data=raw, headers=HEADERS) as answer:
        return Response(await answer.read(), media_type="application/json")


async def connect() -> None:
    """Open the client inside the loop that uses it."""
    _session.append(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))


def main() -> None:
    """Serve until ended."""
    app = Litestar([chat], on_startup=[connect], openapi_config=None, logging_config=None)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(1024)
        print(listening.getsockname()[1], flush=True)
        uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False)).run(sockets=[listening])


if __name__ == "__main__":
    main()
