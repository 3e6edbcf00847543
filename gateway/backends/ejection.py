"""Takes a replica that answers probes but fails or lags out of its pool for a while. Called by `pool`; no I/O.

After Envoy's outlier detection: consecutive failures eject, longer each time, and never so many that the rest cannot
carry the load. https://www.envoyproxy.io/docs/envoy/latest/intro/arch_overview/upstream/outlier
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass

FAILURES = 3
"""In a row, that eject."""
FIRST_S = 5.0
"""Seconds that a replica is left out for, the first time; as often as it was ejected before, longer."""
LONGEST_S = 60.0


@dataclass(slots=True)
class _Record:
    failures: int = 0
    ejections: int = 0
    until: float = 0.0


class Ejector:
    """Which of a pool's replicas are left out. At most half of them are at a time."""

    def __init__(self, size: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = size // 2
        self._clock = clock
        self._records: dict[Hashable, _Record] = {}

    def out(self, replica: Hashable) -> bool:
        """Return whether a replica is left out now."""
        record = self._records.get(replica)
        return record is not None and record.until > self._clock()

    def failed(self, replica: Hashable) -> bool:
        """Count a failure; return whether it ejected the replica."""
        record = self._records.setdefault(replica, _Record())
        record.failures += 1
        if record.failures < FAILURES:
            return False
        return self._eject(replica, min(LONGEST_S, FIRST_S * (record.ejections + 1)))

    def lags(self, replica: Hashable) -> bool:
        """Leave out a replica that answers, but worse than the others; return whether that may be."""
        return self._eject(replica, LONGEST_S)

    def _eject(self, replica: Hashable, seconds: float) -> bool:
        record = self._records.setdefault(replica, _Record())
        now = self._clock()
        others = sum(other.until > now for other in self._records.values())
        if record.until > now or others >= self._most:
            return False
        record.ejections += 1
        record.until = now + seconds
        return True

    def served(self, replica: Hashable) -> None:
        """Count a request that was answered."""
        record = self._records.get(replica)
        if record is None:
            return
        if record.failures == 0 and record.ejections:
            record.ejections -= 1
        record.failures = 0
