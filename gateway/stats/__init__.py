"""Redis: live statistics as integer counters shared by all gateways, and the rate limiter's buckets."""

from gateway.stats.limits import LimitState, RateLimiter
from gateway.stats.store import StatsStore

__all__ = ["LimitState", "RateLimiter", "StatsStore"]
