"""Sends the demo's 48 prompts over and over: by wrk where it is installed, else by raw asyncio connections.

Used by `gateway_overhead`. The text model has to classify all of them: no prompt brings a `response_format`. A number
makes each one new, as the gateway remembers what it made of a prompt, unless they shall come `again` as they are.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

from cli.demo.workload import load_prompts

SCRIPT = """
wrk.method="POST"; wrk.headers["content-type"]="application/json"
local parts = {%s}
local sent, number = 0, %d
request = function()
  sent, number = sent %% #parts + 1, number + 1
  local part = parts[sent]
  return wrk.format(nil, nil, nil, part[2] and part[1] .. number .. part[2] or part[1])
end
"""
MARK = "@number@"
UNITS = {"us": 1e-3, "ms": 1.0, "s": 1e3}


@dataclass(frozen=True)
class Load:
    """What one run measured."""

    per_second: float
    p50_ms: float


def bodies(*, stream: bool, again: bool = True) -> list[str]:
    """Return the requests' bodies; those that shall be new each time with a mark where their number goes."""
    made = []
    for prompt in load_prompts():
        *before, last = prompt.messages
        messages = [*before, last if again else {**last, "content": f"{last['content']} {MARK}"}]
        made.append(json.dumps({"model": "bench", "stream": stream, "messages": messages, "max_tokens": 64}))
    return made


def tool() -> str:
    """Return which load generator is used."""
    return "wrk" if shutil.which("wrk") else "asyncio"


def run(url: str, *, connections: int, seconds: float, stream: bool, again: bool = False) -> Load:
    """Load one server. Raises RuntimeError where an answer was not 200."""
    given = [body.split(MARK) for body in bodies(stream=stream, again=again)]
    if tool() == "wrk":
        return _wrk(url, connections, seconds, given)
    return asyncio.run(_asyncio(url, connections, seconds, given))


def _wrk(url: str, connections: int, seconds: float, given: list[list[str]]) -> Load:
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "post.lua"
        quoted = (", ".join(f"[=====[{part}]=====]" for part in parts) for parts in given)
        script.write_text(SCRIPT % (", ".join(f"{{{parts}}}" for parts in quoted), _first()), encoding="utf-8")
        command = ["wrk", "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}", "--latency", "-s", str(script), url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 30, check=True)
    if "Non-2xx" in done.stdout:
        raise RuntimeError(f"the server refused requests: {done.stdout}")
    rate = re.search(r"Requests/sec:\s+([\d.]+)", done.stdout)
    half = re.search(r"50%\s+([\d.]+)(us|ms|s)", done.stdout)
    if rate is None or half is None:
        raise RuntimeError(f"wrk said something else: {done.stdout}")
    return Load(float(rate[1]), float(half[1]) * UNITS[half[2]])


def _first() -> int:
    """Return a number from which on no run has counted yet; of 14 digits, as many as Lua writes."""
    return 10**13 + time.time_ns() // 10**6 % 10**10 * 10


def _raws(head: str, given: list[list[str]]) -> Iterator[bytes]:
    numbers = itertools.count(_first())
    for parts in itertools.cycle(given):
        body = str(next(numbers)).join(parts)
        yield f"{head}content-length: {len(body)}\r\n\r\n{body}".encode()


async def _asyncio(url: str, connections: int, seconds: float, given: list[list[str]]) -> Load:
    parts = urlsplit(url)
    raws = _raws(f"POST {parts.path} HTTP/1.1\r\nhost: {parts.netloc}\r\ncontent-type: application/json\r\n", given)
    until = time.perf_counter() + seconds
    times: list[float] = []

    async def one() -> None:
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        while time.perf_counter() < until:
            began = time.perf_counter()
            writer.write(next(raws))
            await _answer(reader)
            times.append((time.perf_counter() - began) * 1e3)
        writer.close()

    began = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(connections)))
    return Load(len(times) / (time.perf_counter() - began), median(times))


async def _answer(reader: asyncio.StreamReader) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    if b" 200 " not in head.partition(b"\r\n")[0]:
        raise RuntimeError(f"the server refused a request: {head!r}")
    sized = re.search(rb"content-length: *(\d+)", head)
    if sized is not None:
        await reader.readexactly(int(sized[1]))
        return
    while size := int(await reader.readuntil(b"\r\n"), 16):
        await reader.readexactly(size + 2)
    await reader.readexactly(2)
