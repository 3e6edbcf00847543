"""The change detector: false alarms, delay, and recovery; alone, and through live snapshots."""

from __future__ import annotations

import random

import numpy as np
import pytest

from gateway.routing import Bucket, Snapshot, build_snapshot, observe
from gateway.routing.change import Watches
from gateway.types import Arm, CellKey
from tests.unit.gateway.routing.build import ARMS, NOW, costs, record, steps

TASKS = ("a", "b", "c", "d")


def feed(watches: Watches, rng: np.random.Generator, task: str, mean: float, sd: float = 0.15) -> set[str]:
    s = round(1000 * float(np.clip(rng.normal(mean, sd), 0, 3)))
    return watches.note("engine", "ngram", task, {8: (1, s, s * s)})


def false_alarms(requests: int, seed: int) -> int:
    rng, watches = np.random.default_rng(seed), Watches()
    return sum(bool(feed(watches, rng, TASKS[i % 4], 0.8 + 0.1 * (i % 4))) for i in range(requests))


def test_at_most_one_false_alarm_in_10_000_requests() -> None:
    assert sum(false_alarms(10_000, seed) for seed in range(2)) <= 2


@pytest.mark.verify
def test_false_alarms_over_many_requests() -> None:
    assert sum(false_alarms(10_000, seed) for seed in range(100, 140)) <= 40


def test_a_fall_of_1_5_standard_deviations_in_one_task_is_noticed_within_15_requests() -> None:
    delays = []
    for seed in range(40):
        rng, watches = np.random.default_rng(seed), Watches()
        for i in range(800):
            feed(watches, rng, TASKS[i % 4], 1.0)
        delays.append(1)
        while not feed(watches, rng, "a", 1.0 - 1.5 * 0.15):  # only one task falls: the pool hardly helps
            delays[-1] += 1
            for task in TASKS[1:]:
                feed(watches, rng, task, 1.0)
    assert np.median(delays) <= 15


def test_one_good_request_ends_a_fall_everywhere() -> None:
    rng, watches = np.random.default_rng(1), Watches()
    for i in range(400):
        feed(watches, rng, TASKS[i % 4], 1.0)
    hit: set[str] = set()
    for i in range(100):
        hit |= feed(watches, rng, TASKS[i % 4], 0.05, 0.02)
    assert hit == set(TASKS)
    for i in range(40):
        feed(watches, rng, TASKS[i % 4], 0.05, 0.02)
    assert feed(watches, rng, "a", 1.0) == set(TASKS)
    assert not any(watch.fallen for watch in watches.tasks.values())


def test_a_batch_of_requests_counts_like_single_ones() -> None:
    """The store's increments hold many requests at once: sums are linear, so only the clipping differs."""
    rng, watches = np.random.default_rng(3), Watches()
    for _ in range(300):
        feed(watches, rng, "a", 1.0)
    low = [round(1000 * x) for x in rng.normal(0.6, 0.1, 30)]
    assert watches.note("engine", "ngram", "a", {8: (30, sum(low), sum(x * x for x in low))}) == {"a"}


class Live:
    """Snapshots of a store that is read once a second, with counters per minute as Redis holds them."""

    def __init__(self) -> None:
        self.minutes: dict[tuple[int, CellKey], dict[str, int]] = {}
        self.now, self.rng = NOW, random.Random(4)
        self.snapshot: Snapshot | None = None

    def second(self, p: float, requests: int = 2, k: int = 8) -> Snapshot:
        for _ in range(requests):
            for key, counters in observe(record(Arm("engine", "ngram", k), *steps(self.rng, p, k, 60))):
                into = self.minutes.setdefault((int(self.now // 60), key), {})
                for name, value in counters.items():
                    into[name] = into.get(name, 0) + value
        buckets = [Bucket(minute, key, dict(counters)) for (minute, key), counters in self.minutes.items()]
        self.snapshot = build_snapshot(
            buckets, {"engine": costs()}, now=self.now, arms={"engine": ARMS}, previous=self.snapshot
        )
        self.now += 1.0
        return self.snapshot


KEY = ("engine", "code", "0", "512", 1)


def test_a_collapse_under_live_traffic_turns_drafting_off_within_seconds() -> None:
    """After ten minutes of good drafts the past outweighs the present many times; it must not matter."""
    live = Live()
    for _ in range(150):
        live.second(0.9)
    assert live.snapshot is not None
    assert live.snapshot.nodes[KEY].state.incumbent == ("ngram", 8)
    seconds = 0
    while live.second(0.0).nodes[KEY].state.incumbent[1] and seconds < 60:
        seconds += 1
    assert seconds <= 12
    node = live.snapshot.nodes[KEY]
    assert node.evidence.arms[-1].requests < 30
    for _ in range(100):
        live.second(0.0, requests=1, k=2)
    assert live.snapshot.nodes[KEY].state.incumbent[1] == 0
    for _ in range(12):
        live.second(0.9, k=8)
    assert live.snapshot.nodes[KEY].state.incumbent == ("ngram", 8)
