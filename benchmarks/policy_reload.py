"""Policies exchanged under 200 requests a second, between two gateways on one Redis and one database.

Run: python -m benchmarks.policy_reload [--json]. Requests go to the first gateway at a fixed rate, whether or not those
before have been answered; a policy is applied there twice a second, each with a backend of its own, so that an answer
under a mixture would name the arm of another policy. Limits: no failed request, no mixture, both gateways within 2 s.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import median
from sys import executable

import aiohttp

from benchmarks._gateway_load import bodies
from benchmarks.gateway_overhead import free_port, port_of, process, valkey, wait_for

RATE = 200.0
SECONDS = 15.0
EVERY_S = 0.5
LATE_S = 10.0


def policy(url: str, number: int) -> str:
    """Return the policy of a change; its backend is called after it."""
    return (
        f"version: 1\nbackends:\n  pool-{number}: {{kind: openai, url: '{url}', arms: [plain]}}\n"
        f"rules:\n  - {{name: change {number}, owner: bench}}\n"
    )


def hash_of(text: str) -> str:
    """Return what `x-breakeven-policy` says under a policy."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


async def load(url: str, seen: Counter[tuple[int, str, str]], times: list[float]) -> None:
    """Send `RATE` requests a second; count them by status, policy and arm."""
    given = [body.encode() for body in bodies(stream=False)]
    headers = {"content-type": "application/json"}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session, asyncio.TaskGroup() as group:

        async def one(number: int) -> None:
            began = time.perf_counter()
            try:
                async with session.post(url, data=given[number % len(given)], headers=headers) as answer:
                    await answer.read()
                    said = answer.headers
                    seen[answer.status, said.get("x-breakeven-policy", ""), said.get("x-breakeven-arm", "")] += 1
            except aiohttp.ClientError as error:
                seen[0, type(error).__name__, ""] += 1
            times.append(time.perf_counter() - began)

        began = time.perf_counter()
        for number in range(int(RATE * SECONDS)):
            await asyncio.sleep(max(0.0, began + number / RATE - time.perf_counter()))
            group.create_task(one(number))


async def change(first: str, second: str, upstream: str, spread: list[float]) -> list[str]:
    """Apply one policy after another at the first gateway; note when the second one follows. Returns their hashes."""
    hashes: list[str] = []
    until = time.perf_counter() + SECONDS - EVERY_S
    async with aiohttp.ClientSession() as session:
        while time.perf_counter() < until:
            text = policy(upstream, len(hashes) + 1)
            hashes.append(hash_of(text))
            headers = {"if-match": "*", "content-type": "application/yaml"}
            began = time.perf_counter()
            async with session.put(f"{first}/v1/policy", data=text, headers=headers) as answer:
                if answer.status != 200:
                    raise RuntimeError(f"a policy was refused: {await answer.text()}")
            while time.perf_counter() - began < LATE_S:
                async with session.get(f"{second}/v1/policy") as answer:
                    if answer.headers["etag"].strip('"') == hashes[-1]:
                        break
                await asyncio.sleep(0.02)
            spread.append(time.perf_counter() - began)
            await asyncio.sleep(max(0.0, EVERY_S - (time.perf_counter() - began)))
    return hashes


async def drive(first: str, second: str, upstream: str) -> dict[str, float]:
    """Return the figures of one run."""
    seen: Counter[tuple[int, str, str]] = Counter()
    times: list[float] = []
    spread: list[float] = []
    _, hashes = await asyncio.gather(
        load(f"{first}/v1/chat/completions", seen, times), change(first, second, upstream, spread)
    )
    arms = {name: f"pool-{number}/plain" for number, name in enumerate([hash_of(policy(upstream, 0)), *hashes])}
    good = {key: count for key, count in seen.items() if key[0] == 200}
    times.sort()
    return {
        "requests": len(times),
        "failed": len(times) - sum(good.values()),
        "under_a_mixture": sum(count for (_, name, arm), count in good.items() if arms.get(name) != arm),
        "changes": len(hashes),
        "policies_that_answered": len({name for _, name, _ in good}),
        "request_ms_median": round(1e3 * median(times), 2),
        "request_ms_p99": round(1e3 * times[int(0.99 * len(times))], 2),
        "second_gateway_ms_median": round(1e3 * median(spread), 1),
        "second_gateway_ms_max": round(1e3 * max(spread), 1),
    }


def main() -> None:
    """Start two gateways, run, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args().json
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bk-reload-")))
        upstream = stack.enter_context(process(executable, "-m", "benchmarks._gateway_upstream"))
        url = f"http://127.0.0.1:{port_of(upstream)}"
        redis, _ = stack.enter_context(valkey(folder))
        (folder / "policy.yaml").write_text(policy(url, 0), encoding="utf-8")
        gateways = []
        for name in ("one", "two"):
            port = free_port()
            env = {"BREAKEVEN_DATA_DIR": str(folder / name), "BREAKEVEN_REDIS_URL": redis}
            env["BREAKEVEN_DATABASE_URL"] = f"sqlite:///{folder}/shared.db"
            options = ("--port", str(port), "--policy", str(folder / "policy.yaml"), "--log-level", "error")
            gateway = stack.enter_context(process(executable, "-m", "cli.main", "gateway", *options, env=env))
            wait_for(f"http://127.0.0.1:{port}/readyz", gateway)
            gateways.append(f"http://127.0.0.1:{port}")
        figures = asyncio.run(drive(gateways[0], gateways[1], url))
    print(json.dumps(figures) if as_json else "\n".join(f"{name:28} {value}" for name, value in figures.items()))


if __name__ == "__main__":
    main()
