"""Redis: live statistics as integer counters shared by all gateways, and the rate limiter's buckets."""

from gateway.stats.limits import LimitState, RateLimiter
from gateway.stats.memory import MemoryStats
from gateway.stats.store import StatsStore

Statistics = StatsStore | MemoryStats
"""Where counters are: Redis, or this process where none is configured."""

__all__ = ["LimitState", "MemoryStats", "RateLimiter", "Statistics", "StatsStore"]
