"""The rate limiter's script on Valkey and Redis, its twin in memory, and what holds while Redis is away."""

import asyncio
import signal
import time
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.stats import RateLimiter, StatsStore
from gateway.stats.limits import LocalBuckets
from gateway.types import Identity


def key(key_id="k", rpm=None, tpm=None):
    return Identity(key_id, "n", "app", False, rpm, tpm)


PATIENT_S = 20.0
"""The tests are of the script, not of a busy machine."""


@contextmanager
def timed():
    """How long a block took, in seconds: buckets fill meanwhile."""
    began, took = time.monotonic(), [0.0]
    yield took
    took[0] = time.monotonic() - began + 0.01


@pytest.fixture
async def limiter(redis_url):
    store = StatsStore(redis_url, timeout_s=PATIENT_S)
    opened = RateLimiter(store, timeout_s=PATIENT_S)
    yield opened
    await opened.aclose()
    await store.aclose()


async def test_keys_without_limits_cost_nothing(limiter):
    state = await limiter.check(key(), 10**9)
    assert (state.allowed, state.limit_requests, state.limit_tokens, state.local) == (True, None, None, False)
    assert await limiter._client.keys("breakeven:limit:*") == []


async def test_requests_are_limited_exactly_over_all_gateways(limiter, redis_url):
    other = RateLimiter(redis_url, timeout_s=PATIENT_S)
    with timed() as took:
        checks = [each.check(key(rpm=20), 1) for each in (limiter, other) for _ in range(25)]
        states = await asyncio.gather(*checks)
    assert 20 <= sum(state.allowed for state in states) <= 20 + took[0] / 3  # one comes back every 3 s
    assert not any(state.local for state in states)
    refused = next(state for state in states if not state.allowed)
    assert refused.limited_by == "requests"
    assert 0 < refused.retry_after_s <= 3.0
    assert refused.limit_requests == 20
    assert refused.remaining_requests == 0
    assert 57 - took[0] < refused.reset_requests_s <= 60
    await other.aclose()


async def test_tokens_are_reserved_and_settled(limiter):
    identity = key(tpm=6000)
    with timed() as took:
        assert (await limiter.check(identity, 5000)).remaining_tokens == 1000
        refused = await limiter.check(identity, 2000)
    assert (refused.allowed, refused.limited_by) == (False, "tokens")
    assert 10 - took[0] < refused.retry_after_s <= 10  # a thousand tokens at a hundred a second
    with timed() as more:
        limiter.settle(identity, 5000, 500)
        await limiter._task
        state = await limiter.check(identity, 1)
    assert 5499 <= state.remaining_tokens <= 5500 + 100 * (took[0] + more[0])


async def test_more_tokens_than_reserved_become_a_debt(limiter):
    identity = key(tpm=600)
    with timed() as took:
        await limiter.check(identity, 100)
        limiter.settle(identity, 100, 1300)
        await limiter._task
        refused = await limiter.check(identity, 10)
    assert not refused.allowed
    assert refused.remaining_tokens == 0
    assert 71 - took[0] < refused.retry_after_s <= 71  # 710 tokens at ten a second


async def test_a_request_larger_than_the_whole_limit_passes_when_the_bucket_is_full(limiter):
    identity = key(tpm=100)
    assert (await limiter.check(identity, 5000)).allowed
    assert not (await limiter.check(identity, 90)).allowed


async def test_buckets_expire_when_they_are_full_again(limiter):
    with timed() as took:
        await limiter.check(key(rpm=60, tpm=60), 30)
        left = await limiter._client.pttl("breakeven:limit:k")
    assert 31_000 - 1000 * took[0] < left <= 31_000  # half a minute, and a second more


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
    buckets = LocalBuckets(clock=lambda: 0.0)  # seconds may pass in Redis meanwhile: refusals are far from allowed
    identity = key(rpm=7, tpm=1000)
    with timed() as took:
        pairs = [
            (buckets.take(identity, tokens), await limiter.check(identity, tokens))
            for tokens in (300, 400, 50, 900, 200, 500, 10, 10, 10, 10)
        ]
    for mine, theirs in pairs:
        assert mine.allowed == theirs.allowed
        assert mine.limited_by == theirs.limited_by
        assert 0 <= theirs.remaining_tokens - mine.remaining_tokens <= 1 + took[0] * 1000 / 60
    assert [mine.limited_by for mine, _ in pairs] == [*[None] * 3, "tokens", None, "tokens", *[None] * 3, "requests"]


async def test_while_redis_is_frozen_each_gateway_limits_alone_and_nobody_waits(valkey_server):
    limiter = RateLimiter(valkey_server.url, timeout_s=0.3)
    identity = key(rpm=50)
    async with asyncio.timeout(60):
        while (await limiter.check(key("other", rpm=50), 1)).local:  # noqa: ASYNC110 — a busy machine may miss its time
            await asyncio.sleep(0.05)
    valkey_server.signal(signal.SIGSTOP)
    before, script, asked = limiter.local_checks, limiter._script, []
    limiter._script = lambda **words: asked.append(words) or script(**words)
    with timed() as took:
        states = [await limiter.check(identity, 1) for _ in range(500)]
    assert len(asked) == 1  # the others did not wait
    assert all(state.local for state in states)
    assert 50 <= sum(state.allowed for state in states) <= 50 + took[0] * 50 / 60
    assert limiter.local_checks - before == 500
    valkey_server.signal(signal.SIGCONT)
    async with asyncio.timeout(60):
        while (await limiter.check(identity, 1)).local:  # noqa: ASYNC110 — nothing announces it
            await asyncio.sleep(0.05)
    await limiter.aclose()


async def test_without_a_server_limits_hold_in_memory(tmp_path):
    limiter = RateLimiter(f"unix://{tmp_path}/none.sock")
    states = [await limiter.check(key(rpm=3), 1) for _ in range(5)]
    assert [state.allowed for state in states] == [True, True, True, False, False]
    limiter.settle(key(tpm=5), 1, 2)
    await limiter.aclose()
