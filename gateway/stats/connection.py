"""Redis clients with tight timeouts and no retries, and the mapping of their errors.

Called by `store.py` and `limits.py`.

Works with Redis and Valkey over TCP, TLS (`rediss://`) and unix sockets (`unix:///path`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.maint_notifications import MaintNotificationsConfig

from gateway.errors import SettingsError, StoreUnavailable
from gateway.stats.breaker import Breaker


def connect(url: str, *, timeout_s: float, connections: int) -> Redis:
    """Return a client that answers or fails in `timeout_s`; opens nothing yet. Raises SettingsError for a bad URL."""
    try:
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=connections,
            timeout=timeout_s,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=Retry(NoBackoff(), 0),
            client_name="breakeven",
            maint_notifications_config=MaintNotificationsConfig(enabled=False),
        )
    except ValueError as error:
        raise SettingsError(f"BREAKEVEN_REDIS_URL: expected redis://, rediss:// or unix:// ({error})") from error
    return Redis.from_pool(pool)


@contextmanager
def guarded(breaker: Breaker) -> Iterator[None]:
    """Run a call under the breaker. Raises StoreUnavailable: at once while open, or for whatever the client raised."""
    if not breaker.may_try:
        raise StoreUnavailable(f"Redis does not answer ({breaker.reason}); next try in a moment")
    try:
        yield
    except asyncio.CancelledError:
        raise
    except (RedisError, OSError, TimeoutError) as error:
        breaker.failure(f"{type(error).__name__}: {error}"[:200])
        raise StoreUnavailable(f"Redis: {breaker.reason}") from error
    breaker.success()
