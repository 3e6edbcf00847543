"""Statistics as traffic would have left them: `gateway_overhead` measures decisions that have something to weigh.

Two arms, all tasks and loads, 200 requests each: the drafting one is faster. The gateway's own code writes to Redis.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from gateway.routing import observe
from gateway.stats import StatsStore
from gateway.stats.store import Item
from gateway.types import DEFAULT_TASKS, Arm, Decision, RequestRecord

REQUESTS = 200
TOKENS = 64
LOADS = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Speed:
    """An arm and its seconds per token."""

    arm: Arm
    seconds: float


PLAIN = Speed(Arm("plain"), 0.010)
DRAFTING = Speed(Arm("drafting", "draft_model", 4), 0.006)


def seed(redis: str) -> None:
    """Write the statistics of the last minutes."""
    asyncio.run(_seed(redis))


async def _seed(redis: str) -> None:
    store = StatsStore(redis)
    try:
        await store.add([item for speed in (PLAIN, DRAFTING) for item in _items(speed)])
    finally:
        await store.aclose()


def _items(speed: Speed) -> list[Item]:
    found: list[Item] = []
    now = time.time()
    for task in DEFAULT_TASKS:
        for load in LOADS:
            for number in range(REQUESTS):
                record = _record(speed, task, load, 1 + 0.1 * (number % 5 - 2), now - 60 * (number % 3))
                found += [(int(record.at // 60), key, counters) for key, counters in observe(record)]
    return found


def _record(speed: Speed, task: str, load: int, factor: float, at: float) -> RequestRecord:
    tpot = speed.seconds * factor
    return RequestRecord(
        request_id="",
        at=at,
        endpoint="chat",
        model="bench",
        key_id="anonymous",
        task=task,
        confidence=1.0,
        source="text",
        arm=speed.arm,
        epoch="1",
        decision=Decision(speed.arm, "", "ok", "default", "", load=load),
        stream=True,
        temperature=1.0,
        status=200,
        error_code=None,
        finish_reason="stop",
        prompt_tokens=18,
        completion_tokens=TOKENS,
        cached_tokens=None,
        overhead_s=0.0005,
        ttft_s=0.05,
        tpot_s=tpot,
        e2e_s=0.05 + tpot * (TOKENS - 1),
        itl_s=[],
        spec=None,
    )
