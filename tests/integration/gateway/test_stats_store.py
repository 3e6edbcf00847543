"""The statistics store on Valkey and on genuine Redis."""

import asyncio
import signal
import time

import pytest

from gateway.errors import SettingsError, StoreUnavailable
from gateway.stats import StatsStore
from gateway.stats.store import LOAD
from gateway.types import CellKey

KEY = CellKey("engine", "e1", "ngram", 4, "code", "0", "512", 1)
OTHER = CellKey("engine", "e1", "plain", 0, "chat", "1", "2k", 4)
NOW = int(time.time() // 60)


@pytest.fixture
async def store(redis_url):
    opened = StatsStore(redis_url)
    yield opened
    await opened.aclose()


async def test_what_is_added_is_read_back_by_minute_and_cell(store):
    await store.add(
        [(NOW, KEY, {"rounds": 3, "accepted": 7}), (NOW, OTHER, {"tokens": 9}), (NOW - 1, KEY, {"rounds": 1})]
    )
    await store.add([(NOW, KEY, {"rounds": 2, "errors": 0})])
    read = await store.read(NOW - 5)
    assert sorted(read) == [
        (NOW - 1, KEY, {"rounds": 1}),
        (NOW, KEY, {"rounds": 5, "accepted": 7}),
        (NOW, OTHER, {"tokens": 9}),
    ]
    assert await store.read(NOW - 1, NOW - 1) == [(NOW - 1, KEY, {"rounds": 1})]


async def test_several_gateways_adding_at_once_lose_nothing(store, redis_url):
    others = [StatsStore(redis_url) for _ in range(4)]
    big = 2**53 + 1  # beyond what a double can count exactly
    await store.add([(NOW, KEY, {"draft_us": big})])
    await asyncio.gather(*(other.add([(NOW, KEY, {"draft_us": 1})]) for other in others for _ in range(50)))
    assert (await store.read(NOW))[0][2] == {"draft_us": big + 200}
    for other in others:
        await other.aclose()


async def test_a_numbered_batch_counts_once(store):
    items = [(NOW, KEY, {"rounds": 3})]
    assert await store.add(items, writer="w1", sequence=1)
    assert not await store.add(items, writer="w1", sequence=1)
    assert await store.add(items, writer="w1", sequence=2)
    assert not await store.add(items, writer="w1", sequence=1)
    assert await store.add(items, writer="w2", sequence=1)
    assert (await store.read(NOW))[0][2] == {"rounds": 9}


async def test_minutes_expire_and_expired_ones_are_left_out(store, redis_url):
    short = StatsStore(redis_url, keep_minutes=5)
    await short.add([(NOW, KEY, {"rounds": 1}), (NOW - 6, KEY, {"rounds": 1})])
    assert [minute for minute, _, _ in await store.read(NOW - 10)] == [NOW]
    for name in (f"breakeven:cells:{NOW}", f"breakeven:cells:{NOW}:{KEY.encode()}"):
        assert 0 < await store._client.ttl(name) <= 5 * 60
    await short.aclose()


async def test_overflow_is_said_once_and_the_rest_is_kept(store):
    await store.add([(NOW, KEY, {"a": 2**63 - 1})], writer="w", sequence=1)
    with pytest.raises(OverflowError):
        await store.add([(NOW, KEY, {"a": 1, "b": 1})], writer="w", sequence=2)
    assert not await store.add([(NOW, KEY, {"a": 1, "b": 1})], writer="w", sequence=2)
    assert (await store.read(NOW))[0][2] == {"a": 2**63 - 1, "b": 1}


async def test_gateways_tell_each_other_what_they_have_in_flight(store, redis_url):
    other, third = StatsStore(redis_url), StatsStore(redis_url)
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


async def test_foreign_fields_are_ignored(store):
    await store._client.hset(f"breakeven:cells:{NOW}", mapping={"nonsense": 1, "a|b": 2, "*": 1})
    await store._client.hset(f"breakeven:cells:{NOW}:nonsense", mapping={"n": 1})
    assert await store.read(NOW) == []
    await store.add([(NOW, KEY, {"rounds": 1}), (NOW, OTHER, {"rounds": 2})])
    await store._client.hset(f"breakeven:cells:{NOW}:{KEY.encode()}", mapping={'"': "none"})
    assert await store.read(NOW) == [(NOW, OTHER, {"rounds": 2})]


async def test_only_what_has_changed_is_fetched_again(store, redis_url):
    await store.add([(NOW, KEY, {"rounds": 1}), (NOW, OTHER, {"rounds": 2})])
    before = {key: counters for _, key, counters in await store.read(NOW)}
    fetched = []
    fetch = store._counters

    async def watched(minute, cells):
        fetched.append(list(cells))
        return await fetch(minute, cells)

    store._counters = watched
    assert len(await store.read(NOW)) == 2
    assert fetched == []
    other = StatsStore(redis_url)
    await other.add([(NOW, KEY, {"rounds": 5})])
    after = {key: counters for _, key, counters in await store.read(NOW)}
    assert fetched == [[KEY.encode().encode()]]
    assert after == {KEY: {"rounds": 6}, OTHER: {"rounds": 2}}
    assert after[OTHER] is before[OTHER]
    await other.aclose()


async def test_a_store_that_lost_everything_is_read_anew(store):
    await store.add([(NOW, KEY, {"rounds": 1}), (NOW, OTHER, {"rounds": 2})])
    await store.read(NOW)
    await store._client.flushall()
    await store.add([(NOW, KEY, {"rounds": 7})])
    assert await store.read(NOW) == [(NOW, KEY, {"rounds": 7})]


async def test_an_unreachable_server_fails_at_once_and_opens_the_breaker(tmp_path):
    store = StatsStore(f"unix://{tmp_path}/nothing.sock")
    with pytest.raises(StoreUnavailable, match="No such file"):
        await store.ping()
    assert not store.available
    with pytest.raises(StoreUnavailable, match="next try"):
        await store.ping()
    await store.aclose()


async def test_a_frozen_server_costs_one_timeout_and_is_found_again(valkey_server):
    store = StatsStore(valkey_server.url, timeout_s=0.2)
    await store.add([(NOW, KEY, {"rounds": 1})])
    valkey_server.signal(signal.SIGSTOP)
    with pytest.raises(StoreUnavailable, match=r"Timeout|timeout"):
        await store.read(NOW)
    for _ in range(100):  # 100 calls that each waited 0.2 s would exceed the test's own limit
        with pytest.raises(StoreUnavailable, match="next try"):
            await store.read(NOW)
    valkey_server.signal(signal.SIGCONT)
    await asyncio.sleep(0.6)
    assert await store.read(NOW) == [(NOW, KEY, {"rounds": 1})]
    await store.aclose()


async def test_counters_survive_kill_and_restart_of_the_server(valkey_server):
    store = StatsStore(valkey_server.url)
    await store.add([(NOW, KEY, {"rounds": 4})])
    valkey_server.kill()
    with pytest.raises(StoreUnavailable):
        await store.ping()
    valkey_server.start()
    await asyncio.sleep(0.6)
    await store.add([(NOW, KEY, {"rounds": 1})])  # the script is loaded anew
    assert await store.read(NOW) == [(NOW, KEY, {"rounds": 5})]
    await store.aclose()


def test_a_bad_url_is_a_settings_error():
    with pytest.raises(SettingsError, match="BREAKEVEN_REDIS_URL"):
        StatsStore("http://127.0.0.1:1")
