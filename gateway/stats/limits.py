"""Requests and tokens per minute for each API key: one atomic script in Redis, exact over all gateways.

Called by the access layer before a request is classified, and once more when its real token count is known. While Redis
does not answer, each gateway limits alone from its own memory (`LimitState.local`) and no request waits: a background
ping decides when to ask Redis again.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from importlib import resources
from typing import Literal

import msgspec

from gateway.errors import StoreUnavailable
from gateway.stats.breaker import Breaker
from gateway.stats.connection import connect, guarded
from gateway.stats.store import StatsStore
from gateway.types import Identity

PREFIX = "breakeven:limit:"
UNIT = 60_000_000
"""Bucket levels are kept in 1/UNIT, so that one microsecond refills exactly `limit` units (see limits.lua)."""
_LOCAL_KEYS = 10_000


class LimitState(msgspec.Struct, frozen=True):
    """Outcome of a check, and what the `x-ratelimit-*` headers say. Limits are None where the key has none."""

    allowed: bool
    limit_requests: int | None = None
    remaining_requests: int | None = None
    reset_requests_s: float | None = None
    """Seconds until the bucket is full again."""
    limit_tokens: int | None = None
    remaining_tokens: int | None = None
    reset_tokens_s: float | None = None
    retry_after_s: float = 0.0
    """Seconds after which this request would be allowed."""
    limited_by: Literal["requests", "tokens"] | None = None
    local: bool = False
    """Decided from this gateway's memory alone because Redis did not answer."""


class RateLimiter:
    """Token buckets per key. `check` reserves, `settle` corrects by what was really used."""

    def __init__(self, store: StatsStore | str, *, timeout_s: float = 0.1) -> None:
        url = store if isinstance(store, str) else store.url
        self._client = connect(url, timeout_s=timeout_s, connections=32)
        self._script = self._client.register_script(_source("limits.lua"))
        self._breaker = Breaker()
        self._local = LocalBuckets()
        self._owed: dict[str, tuple[Identity, int]] = {}
        self._task: asyncio.Task[None] | None = None
        self.local_checks = 0
        """Checks decided without Redis since the start."""

    @property
    def available(self) -> bool:
        """Whether Redis answered the last call."""
        return self._breaker.closed

    async def check(self, identity: Identity, tokens: int) -> LimitState:
        """Take one request and `tokens` tokens (prompt estimate plus max_tokens) if both buckets have them.

        More tokens than the whole limit count as the limit. Never raises; keys without limits cost nothing.
        """
        if not (identity.requests_per_minute or identity.tokens_per_minute):
            return LimitState(allowed=True)
        if self._breaker.closed:
            try:
                with guarded(self._breaker):
                    reply = await self._script(keys=[PREFIX + identity.key_id], args=_arguments(identity, 1, tokens))
                return _state(identity, [int(part) for part in reply])
            except StoreUnavailable:
                pass
        self._work_in_background()
        self.local_checks += 1
        return self._local.take(identity, tokens)

    def settle(self, identity: Identity, reserved: int, used: int) -> None:
        """Correct a reservation of `reserved` tokens to those really `used`. Never blocks: sent in the background."""
        difference = used - reserved
        if not (identity.tokens_per_minute and difference):
            return
        if not self._breaker.closed:
            self._local.correct(identity, difference)
        else:
            _, owed = self._owed.get(identity.key_id, (identity, 0))
            self._owed[identity.key_id] = (identity, owed + difference)
            self._work_in_background()

    async def aclose(self) -> None:
        """Send outstanding corrections if Redis answers, and close."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._breaker.closed:
            await self._send_owed()
        await self._client.aclose()

    def _work_in_background(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._settle_and_probe(), name="rate-limiter")

    async def _settle_and_probe(self) -> None:
        """Send corrections; while Redis does not answer, ping it until it does."""
        await asyncio.sleep(0.05)  # corrections of one moment travel together
        answered = await self._send_owed()
        while not answered:
            await asyncio.sleep(0.25)
            answered = await self._send_owed()

    async def _send_owed(self) -> bool:
        """Return whether Redis answered and nothing is left to send."""
        try:
            with guarded(self._breaker):
                await self._client.ping()
            while self._owed:
                key_id, (identity, owed) = next(iter(self._owed.items()))
                with guarded(self._breaker):
                    await self._script(keys=[PREFIX + key_id], args=_arguments(identity, 0, owed, force=True))
                self._forget(key_id, owed)
        except StoreUnavailable:
            return False
        return True

    def _forget(self, key_id: str, sent: int) -> None:
        identity, owed = self._owed.pop(key_id)
        if owed != sent:
            self._owed[key_id] = (identity, owed - sent)


class LocalBuckets:
    """The same two buckets as limits.lua, in this process: what holds while Redis is away."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._levels: dict[str, tuple[int, int, int]] = {}

    def take(self, identity: Identity, tokens: int) -> LimitState:
        """Take one request and `tokens` tokens if both buckets have them."""
        now = int(self._clock() * 1e6)
        limits = (identity.requests_per_minute or 0, identity.tokens_per_minute or 0)
        *stored, at = self._levels.get(identity.key_id, (limits[0] * UNIT, limits[1] * UNIT, now))
        levels, needs, wait, short = [], [], 0, 0
        for i, wanted in enumerate((1, tokens)):
            capacity = limits[i] * UNIT
            levels.append(min(capacity, stored[i] + max(0, now - at) * limits[i]))
            needs.append(min(wanted * UNIT, capacity))
            missing = math.ceil((needs[i] - levels[i]) / limits[i]) if limits[i] else 0
            if missing > wait:
                wait, short = missing, i + 1
        if not short:
            levels = [level - need for level, need in zip(levels, needs, strict=True)]
            if len(self._levels) >= _LOCAL_KEYS and identity.key_id not in self._levels:
                self._levels.pop(next(iter(self._levels)))
            self._levels[identity.key_id] = (levels[0], levels[1], now)
        return msgspec.structs.replace(_state(identity, [not short, *levels, wait, short]), local=True)

    def correct(self, identity: Identity, tokens: int) -> None:
        """Take `tokens` more (negative: give back) from a key seen before."""
        known = self._levels.get(identity.key_id)
        if known is not None:
            self._levels[identity.key_id] = (known[0], known[1] - tokens * UNIT, known[2])


def _source(name: str) -> str:
    return resources.files("gateway.stats").joinpath(name).read_text("utf-8")


def _arguments(identity: Identity, requests: int, tokens: int, *, force: bool = False) -> list[str | int]:
    rpm, tpm = identity.requests_per_minute or 0, identity.tokens_per_minute or 0
    return [rpm, tpm, requests, tokens, "1" if force else "0"]


def _state(identity: Identity, reply: list[int]) -> LimitState:
    """Read the five numbers that limits.lua returns."""
    allowed, requests, tokens, wait_us, short = reply
    rpm, tpm = identity.requests_per_minute, identity.tokens_per_minute
    return LimitState(
        allowed=bool(allowed),
        limit_requests=rpm or None,
        remaining_requests=max(0, requests // UNIT) if rpm else None,
        reset_requests_s=(rpm * UNIT - requests) / rpm / 1e6 if rpm else None,
        limit_tokens=tpm or None,
        remaining_tokens=max(0, tokens // UNIT) if tpm else None,
        reset_tokens_s=(tpm * UNIT - tokens) / tpm / 1e6 if tpm else None,
        retry_after_s=wait_us / 1e6,
        limited_by=("requests", "tokens")[short - 1] if short else None,
    )
