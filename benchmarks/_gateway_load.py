"""Sends the demo's 48 prompts over and over: by wrk where it is installed, else by raw asyncio connections.

Used by `gateway_overhead`. The text model has to classify all of them: no prompt brings a `response_format`.
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
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

from cli.demo.workload import load_prompts

SCRIPT = """
wrk.method="POST"; wrk.headers["content-type"]="application/json"
local bodies = {%s}
local sent = 0
request = function() sent = sent %% #bodies + 1; return wrk.format(nil, nil, nil, bodies[sent]) end
"""
UNITS = {"us": 1e-3, "ms": 1.0, "s": 1e3}


@dataclass(frozen=True)
class Load:
    """What one run measured."""

    per_second: float
    p50_ms: float


def bodies(*, stream: bool) -> list[str]:
    """Return the requests' bodies."""
    return [
        json.dumps({"model": "bench", "stream": stream, "messages": prompt.messages, "max_tokens": 64})
        for prompt in load_prompts()
    ]


def tool() -> str:
    """Return which load generator is used."""
    return "wrk" if shutil.which("wrk") else "asyncio"


def run(url: str, *, connections: int, seconds: float, stream: bool) -> Load:
    """Load one server. Raises RuntimeError where an answer was not 200."""
    if tool() == "wrk":
        return _wrk(url, connections, seconds, bodies(stream=stream))
    return asyncio.run(_asyncio(url, connections, seconds, bodies(stream=stream)))


def _wrk(url: str, connections: int, seconds: float, given: list[str]) -> Load:
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "post.lua"
        script.write_text(SCRIPT % ", ".join(f"[=====[{body}]=====]" for body in given), encoding="utf-8")
        command = ["wrk", "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}", "--latency", "-s", str(script), url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 30, check=True)
    if "Non-2xx" in done.stdout:
        raise RuntimeError(f"the server refused requests: {done.stdout}")
    rate = re.search(r"Requests/sec:\s+([\d.]+)", done.stdout)
    half = re.search(r"50%\s+([\d.]+)(us|ms|s)", done.stdout)
    if rate is None or half is None:
        raise RuntimeError(f"wrk said something else: {done.stdout}")
    return Load(float(rate[1]), float(half[1]) * UNITS[half[2]])


async def _asyncio(url: str, connections: int, seconds: float, given: list[str]) -> Load:
    parts = urlsplit(url)
    head = f"POST {parts.path} HTTP/1.1\r\nhost: {parts.netloc}\r\ncontent-type: application/json\r\n"
    raws = itertools.cycle([f"{head}content-length: {len(body)}\r\n\r\n{body}".encode() for body in given])
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
