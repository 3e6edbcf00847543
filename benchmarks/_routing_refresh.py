"""Reading 1,000 cells of statistics from a real Redis and making a snapshot of them; for `routing_decide`."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gateway_overhead import valkey
from cli.gateway import tame_collector
from engine.messages import CostTable
from gateway.routing import Bucket, Snapshot, build_snapshot
from gateway.stats import StatsStore
from gateway.types import Arm
from gateway.window import Window

ROUNDS = 15


def measure_refresh(
    cells: Sequence[Bucket], costs: Mapping[str, CostTable], arms: Mapping[str, Sequence[Arm]]
) -> dict[str, Any]:
    """Return milliseconds of one refresh where none, 50 and all of the cells have news, as medians.

    Garbage is collected as in the gateway's own process.
    """
    tame_collector()
    with tempfile.TemporaryDirectory(prefix="refresh-") as folder, valkey(Path(folder)) as (url, _):
        return asyncio.run(_measure(url, cells, costs, arms))


async def _measure(
    url: str, cells: Sequence[Bucket], costs: Mapping[str, CostTable], arms: Mapping[str, Sequence[Arm]]
) -> dict[str, Any]:
    store = StatsStore(url, timeout_s=10.0)
    window, snapshot = Window(180), None
    await store.add([(int(time.time() // 60), cell.key, cell.counters) for cell in cells])
    result: dict[str, Any] = {}
    try:
        await window.read(store)
        snapshot = _built(window, costs, arms, snapshot)
        for name, changed in (("nothing_new", 0), ("some_changed", 50), ("all_changed", len(cells))):
            times: dict[str, list[float]] = {"read_ms": [], "read_cpu_ms": [], "build_ms": [], "wall_ms": []}
            for _ in range(ROUNDS):
                minute = int(time.time() // 60)
                await store.add([(minute, cell.key, {"n": 1, "tok": 9}) for cell in cells[:changed]])
                began, cpu = time.perf_counter(), time.thread_time()
                await window.read(store)
                read, read_cpu = time.perf_counter() - began, time.thread_time() - cpu
                cpu = time.thread_time()
                snapshot = _built(window, costs, arms, snapshot)
                built = time.thread_time() - cpu
                for key, seconds in zip(times, (read, read_cpu, built, time.perf_counter() - began), strict=True):
                    times[key].append(1e3 * seconds)
            result[name] = {key: round(statistics.median(values), 2) for key, values in times.items()}
    finally:
        await store.aclose()
    return result


def _built(
    window: Window, costs: Mapping[str, CostTable], arms: Mapping[str, Sequence[Arm]], previous: Snapshot | None
) -> Snapshot:
    return build_snapshot(window.buckets(), costs, now=time.time(), arms=arms, previous=previous)
