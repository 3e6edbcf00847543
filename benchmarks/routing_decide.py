"""Latency of one decision with 1,000 cells of statistics, and of refreshing the snapshot it reads.

Run: python -m benchmarks.routing_decide [--json]. Limits: decide p50 ≤ 50 µs, p99 ≤ 200 µs; refreshing 1,000 cells from
Redis ≤ 20 ms (`refresh_from_redis`: reading, its CPU time in this process, building, and both by the clock). Times are
this thread's CPU time, so that other load on the machine does not count; wall-clock percentiles are given besides.
"""

from __future__ import annotations

import json
import platform
import random
import sys
import time
from typing import Any

from benchmarks._routing_refresh import measure_refresh
from engine.messages import CostCell, CostTable
from gateway.policy.schema import Rule
from gateway.routing import Bucket, Snapshot, build_snapshot, decide
from gateway.routing.observe import shape_counters
from gateway.types import Arm, BackendState, CellKey, Classification, GenerateRequest, Identity

TASKS = ("structured", "code", "math", "summarization", "grounded_qa", "translation", "creative", "chat")
LENGTHS = (2, 4, 8)
NOW = 6_000_000.0
ARMS = (Arm("engine"), *(Arm("engine", "ngram", k) for k in LENGTHS))


def cells(count: int) -> list[Bucket]:
    """Return `count` cells over tasks, temperatures, contexts, loads and draft lengths."""
    rng = random.Random(1)
    buckets = []
    for load in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024):
        for task in TASKS:
            for temperature in ("0", "1"):
                for context in ("512", "2k", "8k"):
                    for k in (0, *LENGTHS):
                        key = CellKey("engine", "e1", "ngram" if k else "plain", k, task, temperature, context, load)
                        counters = {"n": 20, "tok": 2000}
                        if k:
                            emitted = [rng.randint(1, k + 1) for _ in range(40)]
                            shape = shape_counters(emitted, [k] * 40, k, LENGTHS)
                            counters = {name: 20 * value for name, value in shape.items()} | {"n": 20}
                        buckets.append(Bucket(int(NOW // 60) - 5, key, counters))
                        if len(buckets) == count:
                            return buckets
    return buckets


def costs() -> CostTable:
    """Return a table like the engine's."""
    return CostTable(
        [
            CostCell(batch, context, k, "ngram", 1e-4, 0.01 * (1 + 0.02 * k * batch**0.5), 0.01, 50)
            for batch in (1, 2, 4, 8, 16, 32)
            for context in (0, 512, 2048)
            for k in LENGTHS
        ]
    )


def measure(rounds: int = 20_000) -> dict[str, Any]:
    """Return microseconds of `decide` and milliseconds of `build_snapshot`."""
    buckets, table = cells(1000), {"engine": costs()}
    snapshot = build_snapshot(buckets, table, now=NOW, arms={"engine": ARMS})
    result: dict[str, Any] = {}
    for name, changed in (("refresh_some_changed_ms", 50), ("refresh_all_changed_ms", len(buckets))):
        builds = []
        for i in range(15):
            for at in range(changed):
                counters = dict(buckets[at].counters)
                counters["n"] += 1
                buckets[at] = Bucket(buckets[at].minute, buckets[at].key, counters)
            begun = time.thread_time()
            snapshot = build_snapshot(buckets, table, now=NOW + i, arms={"engine": ARMS}, previous=snapshot)
            builds.append(1e3 * (time.thread_time() - begun))
        result[name] = {"p50": sorted(builds)[7], "min": min(builds)}
    for adaptive in (False, True):
        result["decide_us_in_flight" if adaptive else "decide_us"] = _decide_times(snapshot, rounds, adaptive=adaptive)
    result["refresh_from_redis"] = measure_refresh(cells(1000), table, {"engine": ARMS})
    return result | {"cells": len(buckets), "nodes": len(snapshot.nodes), "python": platform.python_version()}


def _decide_times(snapshot: Snapshot, rounds: int, *, adaptive: bool) -> dict[str, float]:
    request = GenerateRequest(
        request_id="r", endpoint="chat", body={"messages": []}, model="m", stream=True, include_usage=True,
        identity=Identity("k", "k", "app", False), arrived=0.0, arrived_at=0.0, temperature=0.0, max_tokens=64,
    )  # fmt: skip
    state = BackendState(
        name="engine", kind="engine", healthy=True, arms=ARMS, model="m", max_model_len=8192, epoch="e1",
        has_tool_template=True, per_request_stats=True, per_request_switch=True, adaptive=adaptive, running=3,
    )  # fmt: skip
    rng, rule = random.Random(2), Rule("default")
    classified = [Classification(task, 1.0, "signal") for task in TASKS]
    times, walls = [], []
    for i in range(rounds):
        task, draw, prompt = classified[i % len(TASKS)], rng.random(), (100, 900, 3000)[i % 3]
        begun, wall = time.thread_time_ns(), time.perf_counter_ns()
        decide(
            request, task, rule, snapshot, {"engine": state},
            prompt_tokens=prompt, draw=draw, policy="p", conversation="c" if i % 2 else "",
        )  # fmt: skip
        walls.append((time.perf_counter_ns() - wall) / 1e3)
        times.append((time.thread_time_ns() - begun) / 1e3)
    times, walls = sorted(times[rounds // 10 :]), sorted(walls[rounds // 10 :])
    middle, last = len(times) // 2, int(0.99 * len(times))
    return {"p50": times[middle], "p99": times[last], "wall_p50": walls[middle], "wall_p99": walls[last]}


def main() -> None:
    """Print the figures: as one line with `--json`, else indented."""
    sys.stdout.write(json.dumps(measure(), indent=None if "--json" in sys.argv else 1) + "\n")


if __name__ == "__main__":
    main()
