"""The window of statistics: the newest first, the rest in turn, everything exactly once."""

from __future__ import annotations

import time

import pytest

from gateway import window as window_module
from gateway.stats import MemoryStats
from gateway.types import CellKey
from gateway.window import Window

KEY = CellKey("engine", "e1", "ngram", 4, "code", "0", "512", 1)
NOW = int(time.time() // 60)


@pytest.fixture(autouse=True)
def _within_one_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does a read end early because the machine is busy."""
    monkeypatch.setattr(time, "time", lambda: 60.0 * NOW + 30.0)
    monkeypatch.setattr(window_module, "_FIRST_S", 60.0)


async def filled() -> MemoryStats:
    store = MemoryStats()
    await store.add([(minute, KEY, {"n": 1}) for minute in range(NOW - 59, NOW + 1)])
    return store


def counted(window: Window) -> int:
    return sum(bucket.counters["n"] for bucket in window.buckets())


async def test_one_read_is_enough_where_there_is_little() -> None:
    window = Window(60)
    assert await window.read(await filled())
    assert counted(window) == 60


async def test_where_time_is_short_the_newest_come_first_and_the_rest_piece_by_piece(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, window = await filled(), Window(60)
    monkeypatch.setattr(window_module, "_FIRST_S", 0.0)
    await window.read(store)
    assert counted(window) == 2
    monkeypatch.setattr(window_module, "_FIRST_S", 60.0)
    await store.add([(NOW, KEY, {"n": 5})])
    await window.read(store)
    assert counted(window) == 65
    await store.add([(NOW - 30, KEY, {"n": 7})])
    for _ in range(60):
        await window.read(store)
    assert counted(window) == 72


async def test_everything_is_read_once_then_what_may_be_new() -> None:
    store = MemoryStats()
    await store.add([(NOW - 100, KEY, {"n": 1}), (NOW - 95, KEY, {"n": 2}), (NOW, KEY, {"n": 4})])
    window = Window(240)
    assert await window.read(store)
    assert not await window.read(store)
    assert sum(bucket.counters["n"] for bucket in window.buckets()) == 7
    await store.add([(NOW, KEY, {"n": 8})])
    assert await window.read(store)
    assert sum(bucket.counters["n"] for bucket in window.buckets()) == 15
    await store.add([(NOW - 96, KEY, {"n": 16})])  # replayed late
    for _ in range(240):
        await window.read(store)
    assert sum(bucket.counters["n"] for bucket in window.buckets()) == 31
    assert all(abs(bucket.minute - (NOW - 97)) <= 30 for bucket in window.buckets() if bucket.minute < NOW - 20)


async def test_every_minute_of_the_window_is_in_exactly_one_bucket() -> None:
    store = MemoryStats()
    await store.add([(NOW - age, KEY, {"n": 1 << age}) for age in range(200)])
    window = Window(190)
    await window.read(store)
    buckets = window.buckets()
    assert sum(bucket.counters["n"] for bucket in buckets) == (1 << 191) - 1
    assert len(buckets) < 20
    for bucket in buckets:
        ages = [age for age in range(191) if bucket.counters["n"] >> age & 1]
        assert all(abs(bucket.minute - (NOW - age)) <= 16 for age in ages)
        assert all(abs(bucket.minute - (NOW - age)) <= 6 for age in ages if age < 30)
