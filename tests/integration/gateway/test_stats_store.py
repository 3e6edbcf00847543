"""The statistics store on Valkey and on genuine Redis."""

import asyncio
import contextlib
import signal
import time

import msgspec
import pytest

from gateway.errors import SettingsError, StoreUnavailable
from gateway.stats import StatsStore
from gateway.stats.breaker import Breaker
from gateway.stats.store import LOAD
from gateway.types import CellKey

KEY = CellKey("engine", "e1", "ngram", 4, "code", "0", "512", 1)
OTHER = CellKey("engine", "e1", "plain", 0, "chat", "1", "2k", 4)
PATIENT_S = 20.0
"""Longer than a busy machine stands still."""


def opened_store(url, **options):
    return StatsStore(url, **({"timeout_s": PATIENT_S} | options))


@pytest.fixture
def now():
    """The minute in which the test begins."""
    return int(time.time() // 60)


@pytest.fixture
async def store(redis_url):
    opened = opened_store(redis_url)
    yield opened
    await opened.aclose()


async def test_what_is_added_is_read_back_by_minute_and_cell(store, now):
    await store.add(
        [(now, KEY, {"rounds": 3, "accepted": 7}), (now, OTHER, {"tokens": 9}), (now - 1, KEY, {"rounds": 1})]
    )
    await store.add([(now, KEY, {"rounds": 2, "errors": 0})])
    read = await store.read(now - 5)
    assert sorted(read) == [
        (now - 1, KEY, {"rounds": 1}),
        (now, KEY, {"rounds": 5, "accepted": 7}),
        (now, OTHER, {"tokens": 9}),
    ]
    assert await store.read(now - 1, now - 1) == [(now - 1, KEY, {"rounds": 1})]


async def test_several_gateways_adding_at_once_lose_nothing(store, redis_url, now):
    others = [opened_store(redis_url) for _ in range(4)]
    big = 2**53 + 1  # beyond what a double can count exactly
    await store.add([(now, KEY, {"draft_us": big})])
    await asyncio.gather(*(other.add([(now, KEY, {"draft_us": 1})]) for other in others for _ in range(50)))
    assert (await store.read(now))[0][2] == {"draft_us": big + 200}
    for other in others:
        await other.aclose()


async def test_a_numbered_batch_counts_once(store, now):
    items = [(now, KEY, {"rounds": 3})]
    assert await store.add(items, writer="w1", sequence=1)
    assert not await store.add(items, writer="w1", sequence=1)
    assert await store.add(items, writer="w1", sequence=2)
    assert not await store.add(items, writer="w1", sequence=1)
    assert await store.add(items, writer="w2", sequence=1)
    assert (await store.read(now))[0][2] == {"rounds": 9}


async def test_minutes_expire_and_expired_ones_are_left_out(store, redis_url, now):
    short = opened_store(redis_url, keep_minutes=5)
    await short.add([(now, KEY, {"rounds": 1}), (now - 6, KEY, {"rounds": 1})])
    assert [minute for minute, _, _ in await store.read(now - 10)] == [now]
    for name in (f"breakeven:cells:{now}", f"breakeven:cells:{now}:{KEY.encode()}"):
        assert 0 < await store._client.ttl(name) <= 5 * 60
    await short.aclose()


async def test_overflow_is_said_once_and_the_rest_is_kept(store, now):
    await store.add([(now, KEY, {"a": 2**63 - 1})], writer="w", sequence=1)
    with pytest.raises(OverflowError):
        await store.add([(now, KEY, {"a": 1, "b": 1})], writer="w", sequence=2)
    assert not await store.add([(now, KEY, {"a": 1, "b": 1})], writer="w", sequence=2)
    assert (await store.read(now))[0][2] == {"a": 2**63 - 1, "b": 1}


async def test_gateways_tell_each_other_what_they_have_in_flight(store, redis_url, monkeypatch):
    monkeypatch.setattr("gateway.stats.store.LOAD_MS", 600_000)
    other, third = opened_store(redis_url), opened_store(redis_url)
    try:
        assert await store.share_load("a", {"pool": 3}) == {}
        assert await other.share_load("b", {"pool": 4, "more": 1}) == {"pool": 3}
        assert await third.share_load("c", {}) == {"pool": 7, "more": 1}
        assert await other.share_load("b", {"pool": 0}) == {"pool": 3}
        await store._client.hset(LOAD, "a", '1 {"pool":3}')  # its word is old: it has gone
        assert await third.share_load("c", {}) == {"pool": 0}
        assert await store._client.hexists(LOAD, "a") is False
    finally:
        await other.aclose()
        await third.aclose()


async def test_foreign_fields_are_ignored(store, now):
    await store._client.hset(f"breakeven:cells:{now}", mapping={"nonsense": 1, "a|b": 2, "*": 1})
    await store._client.hset(f"breakeven:cells:{now}:nonsense", mapping={"n": 1})
    assert await store.read(now) == []
    await store.add([(now, KEY, {"rounds": 1}), (now, OTHER, {"rounds": 2})])
    await store._client.hset(f"breakeven:cells:{now}:{KEY.encode()}", mapping={'"': "none"})
    assert await store.read(now) == [(now, OTHER, {"rounds": 2})]


async def test_a_cell_of_two_lines_leaves_the_others_as_they_are(store, now):
    torn = msgspec.structs.replace(KEY, task="two\nlines")
    await store.add([(now, KEY, {"rounds": 1}), (now, torn, {"rounds": 3}), (now, OTHER, {"rounds": 2})])
    assert sorted(await store.read(now)) == [(now, KEY, {"rounds": 1}), (now, OTHER, {"rounds": 2})]


async def test_a_hash_that_is_gone_leaves_the_others_as_they_are(store, now):
    await store.add([(now, KEY, {"rounds": 1}), (now, OTHER, {"rounds": 2})])
    await store._client.delete(f"breakeven:cells:{now}:{KEY.encode()}")
    assert await store.read(now) == [(now, OTHER, {"rounds": 2})]


async def test_only_what_has_changed_is_fetched_again(store, redis_url, now):
    await store.add([(now, KEY, {"rounds": 1}), (now, OTHER, {"rounds": 2})])
    before = {key: counters for _, key, counters in await store.read(now)}
    fetched = []
    fetch = store._counters

    async def watched(minute, cells):
        fetched.append(list(cells))
        return await fetch(minute, cells)

    store._counters = watched
    assert len(await store.read(now)) == 2
    assert fetched == []
    other = opened_store(redis_url)
    await other.add([(now, KEY, {"rounds": 5})])
    after = {key: counters for _, key, counters in await store.read(now)}
    assert fetched == [[KEY.encode().encode()]]
    assert after == {KEY: {"rounds": 6}, OTHER: {"rounds": 2}}
    assert after[OTHER] is before[OTHER]
    await other.aclose()


async def test_a_store_that_lost_everything_is_read_anew(store, now):
    await store.add([(now, KEY, {"rounds": 1}), (now, OTHER, {"rounds": 2})])
    await store.read(now)
    await store._client.flushall()
    await store.add([(now, KEY, {"rounds": 7})])
    assert await store.read(now) == [(now, KEY, {"rounds": 7})]


def held_breaker(store):
    """Give a store a breaker whose clock stands still; returns what moves it past the longest pause."""
    clock = [0.0]
    store._breaker = Breaker(clock=lambda: clock[0])

    def pass_time():
        clock[0] += 60.0

    return pass_time


async def test_an_unreachable_server_fails_at_once_and_opens_the_breaker(tmp_path):
    store = StatsStore(f"unix://{tmp_path}/nothing.sock")
    pass_time = held_breaker(store)
    with pytest.raises(StoreUnavailable, match="No such file"):
        await store.ping()
    assert not store.available
    with pytest.raises(StoreUnavailable, match="next try"):
        await store.ping()
    pass_time()
    with pytest.raises(StoreUnavailable, match="No such file"):
        await store.ping()
    await store.aclose()


async def test_a_frozen_server_costs_one_timeout_and_is_found_again(valkey_server, now):
    patient, store = opened_store(valkey_server.url), StatsStore(valkey_server.url, timeout_s=0.2)
    pass_time = held_breaker(store)
    await patient.add([(now, KEY, {"rounds": 1})])
    valkey_server.signal(signal.SIGSTOP)
    with pytest.raises(StoreUnavailable, match=r"Timeout|timeout"):
        await store.read(now)
    for _ in range(100):
        with pytest.raises(StoreUnavailable, match="next try"):
            await store.read(now)
    valkey_server.signal(signal.SIGCONT)
    found = None
    while found is None:  # a busy machine may miss its time once or twice
        pass_time()
        with contextlib.suppress(StoreUnavailable):
            found = await store.read(now)
    assert found == [(now, KEY, {"rounds": 1})]
    await patient.aclose()
    await store.aclose()


async def test_counters_survive_kill_and_restart_of_the_server(valkey_server, now):
    store = opened_store(valkey_server.url)
    pass_time = held_breaker(store)
    await store.add([(now, KEY, {"rounds": 4})])
    valkey_server.kill()
    with pytest.raises(StoreUnavailable):
        await store.ping()
    valkey_server.start()
    pass_time()
    await store.add([(now, KEY, {"rounds": 1})])  # the script is loaded anew
    assert await store.read(now) == [(now, KEY, {"rounds": 5})]
    await store.aclose()


def test_a_bad_url_is_a_settings_error():
    with pytest.raises(SettingsError, match="BREAKEVEN_REDIS_URL"):
        StatsStore("http://127.0.0.1:1")
