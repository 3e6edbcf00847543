"""The rate limiter's script on Valkey and Redis, its twin in memory, and what holds while Redis is away."""

import asyncio
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.stats import RateLimiter, StatsStore
from gateway.stats.limits import LocalBuckets
from gateway.types import Identity


def key(key_id="k", rpm=None, tpm=None):
    return Identity(key_id, "n", "app", False, rpm, tpm)


@pytest.fixture
async def limiter(redis_url):
    store = StatsStore(redis_url)
    opened = RateLimiter(store, timeout_s=5.0)  # the test is of the script, not of a busy machine
    yield opened
    await opened.aclose()
    await store.aclose()


async def test_keys_without_limits_cost_nothing(limiter):
    state = await limiter.check(key(), 10**9)
    assert (state.allowed, state.limit_requests, state.limit_tokens, state.local) == (True, None, None, False)
    assert await limiter._client.keys("breakeven:limit:*") == []


async def test_requests_are_limited_exactly_over_all_gateways(limiter, redis_url):
    other = RateLimiter(redis_url, timeout_s=5.0)
    checks = [each.check(key(rpm=20), 1) for each in (limiter, other) for _ in range(25)]
    states = await asyncio.gather(*checks)
    assert sum(state.allowed for state in states) in (20, 21)  # one comes back every 3 s
    assert not any(state.local for state in states)
    refused = next(state for state in states if not state.allowed)
    assert refused.limited_by == "requests"
    assert 0 < refused.retry_after_s <= 3.0
    assert refused.limit_requests == 20
    assert refused.remaining_requests == 0
    assert 50 < refused.reset_requests_s <= 60
    await other.aclose()


async def test_tokens_are_reserved_and_settled(limiter):
    identity = key(tpm=6000)
    assert (await limiter.check(identity, 5000)).remaining_tokens == 1000
    refused = await limiter.check(identity, 2000)
    assert (refused.allowed, refused.limited_by) == (False, "tokens")
    assert 9 < refused.retry_after_s <= 10  # a thousand tokens at a hundred a second
    limiter.settle(identity, 5000, 500)
    await limiter._task
    state = await limiter.check(identity, 1)
    assert 5490 <= state.remaining_tokens <= 5500 + 200


async def test_more_tokens_than_reserved_become_a_debt(limiter):
    identity = key(tpm=600)
    await limiter.check(identity, 100)
    limiter.settle(identity, 100, 1300)
    await limiter._task
    refused = await limiter.check(identity, 10)
    assert not refused.allowed
    assert refused.remaining_tokens == 0
    assert 60 < refused.retry_after_s <= 72


async def test_a_request_larger_than_the_whole_limit_passes_when_the_bucket_is_full(limiter):
    identity = key(tpm=100)
    assert (await limiter.check(identity, 5000)).allowed
    assert not (await limiter.check(identity, 1)).allowed


async def test_buckets_expire_when_they_are_full_again(limiter):
    await limiter.check(key(rpm=60, tpm=60), 30)
    assert 29_000 < await limiter._client.pttl("breakeven:limit:k") <= 31_100


@given(st.lists(st.tuples(st.integers(0, 30_000), st.integers(0, 400)), max_size=40), st.integers(1, 500))
def test_the_twin_in_memory_never_gives_more_than_the_limit(steps, tpm):
    now = [0.0]
    buckets = LocalBuckets(clock=lambda: now[0])
    identity, given_out = key(rpm=10**6, tpm=tpm), 0
    for milliseconds, tokens in steps:
        now[0] += milliseconds / 1000
        if buckets.take(identity, tokens).allowed:
            given_out += min(tokens, tpm)
        assert given_out <= tpm + now[0] * tpm / 60 + 1


async def test_the_twin_agrees_with_the_script(limiter):
    buckets = LocalBuckets(clock=lambda: 0.0)  # a second or less passes in Redis meanwhile
    identity = key(rpm=7, tpm=1000)
    for tokens in (300, 400, 50, 900, 200, 20, 20, 20, 20):
        mine, theirs = buckets.take(identity, tokens), await limiter.check(identity, tokens)
        assert mine.allowed == theirs.allowed
        assert mine.limited_by == theirs.limited_by
        assert abs(mine.remaining_tokens - theirs.remaining_tokens) < 60


async def test_while_redis_is_frozen_each_gateway_limits_alone_and_nobody_waits(valkey_server):
    limiter = RateLimiter(valkey_server.url, timeout_s=0.3)
    identity = key(rpm=50)
    assert not (await limiter.check(identity, 1)).local
    valkey_server.signal(signal.SIGSTOP)
    states = [await limiter.check(identity, 1) for _ in range(500)]  # only the first may wait; else the test runs out
    assert all(state.local for state in states)
    assert sum(state.allowed for state in states) in (50, 51, 52)
    assert limiter.local_checks == 500
    valkey_server.signal(signal.SIGCONT)
    async with asyncio.timeout(20):
        while (await limiter.check(identity, 1)).local:  # noqa: ASYNC110 — nothing announces it
            await asyncio.sleep(0.05)
    await limiter.aclose()


async def test_without_a_server_limits_hold_in_memory(tmp_path):
    limiter = RateLimiter(f"unix://{tmp_path}/none.sock")
    states = [await limiter.check(key(rpm=3), 1) for _ in range(5)]
    assert [state.allowed for state in states] == [True, True, True, False, False]
    limiter.settle(key(tpm=5), 1, 2)
    await limiter.aclose()
