"""Notices that a draft has collapsed or recovered: a two-sided CUSUM per task, and one over all tasks. Pure.

The statistic is s = √(accepted/rounds) of each request, standardised by the mean and spread of its task at the draft
length that ran, clipped at ±3 (E. S. Page, Biometrika 41, 1954; κ = ½, h = 10: a false alarm in more than 50,000
requests, and a fall by 1.5 standard deviations is noticed after about 10). Fed with increments of merged counters, so
that every gateway that reads the same store comes to the same conclusion.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

SLACK = 0.5
"""κ: what a request may deviate without adding to the sum, in standard deviations."""
LIMIT = 10.0
"""h: the sum at which a change is reported."""
CLIP = 3.0
MEMORY = 0.995
"""Weight that the reference keeps per request: about 200 requests."""
FEW = 8.0
"""Requests before a reference may be compared with."""
SPREAD, SPREAD_REQUESTS = 0.15, 4.0
"""Standard deviation of s assumed beforehand, and what it weighs in requests."""
SPREAD_LEAST = 0.05
SPREAD_FALLEN = 0.1
RECOVERED = 3.0
"""Standard deviations above the fallen level at which a single request tells of a recovery."""
UNIT = 1000.0
"""`observe` counts s in 1/1,000."""
Moments = tuple[float, float, float]
"""(requests, Σs, Σs²) in units of `observe`."""


@dataclass(slots=True)
class Watch:
    """The detector of one (backend, method, task). Mutable: carried from snapshot to snapshot."""

    up: float = 0.0
    down: float = 0.0
    era: int = 0
    """How many changes were noticed: what was learned before the last one no longer counts."""
    fallen: bool = False
    """Whether the last change was a fall that nothing has contradicted yet."""
    level: float | None = None
    """s where it has been of late."""
    since: float = 0.0
    """Requests with rounds since the last change."""
    reference: dict[int, list[float]] = field(default_factory=dict)
    """[requests, Σs, Σs²] by the draft length that ran, s in units of 1."""

    def note(self, increments: Mapping[int, Moments]) -> tuple[float, float]:
        """Learn from new requests by draft length; return (Σ of standardised s, requests behind it) for the pool."""
        z_sum = n_sum = 0.0
        for k, (n, counted, squared) in increments.items():
            if n <= 0:
                continue
            s, ss = counted / UNIT, squared / UNIT**2
            self.level = s / n if self.level is None else self.level + (s / n - self.level) * (1 - 0.7**n)
            self.since += n
            reference = self.reference.setdefault(k, [0.0, 0.0, 0.0])
            if reference[0] >= FEW:
                mean, sd = _mean_sd(reference)
                z = max(-CLIP * n, min(CLIP * n, (s - n * mean) / (sd * math.sqrt(1 + 1 / reference[0]))))
                self.up = max(0.0, self.up + z - SLACK * n)
                self.down = max(0.0, self.down - z - SLACK * n)
                z_sum, n_sum = z_sum + z, n_sum + n
            keep = MEMORY**n
            self.reference[k] = [keep * reference[0] + n, keep * reference[1] + s, keep * reference[2] + ss]
        return z_sum, n_sum

    def changed(self) -> str | None:
        """Return `fall` or `rise` where the sums have reached the limit."""
        if self.down >= LIMIT:
            return "fall"
        return "rise" if self.up >= LIMIT else None

    def recovered(self, increments: Mapping[int, Moments]) -> bool:
        """Return whether, after a fall, one of these requests stands far above the fallen level."""
        if not self.fallen or self.level is None:
            return False
        known = max(self.reference.values(), key=lambda reference: reference[0], default=None)
        sd = max(SPREAD_FALLEN, _mean_sd(known)[1] if known else SPREAD)
        return any(n > 0 and s / UNIT / n > self.level + RECOVERED * sd for n, s, _ in increments.values())

    def begin_anew(self, *, fallen: bool) -> None:
        """Forget: the next requests make a new reference."""
        self.up = self.down = 0.0
        self.era += 1
        self.fallen = fallen
        self.since = 0.0
        self.reference = {}


@dataclass(slots=True)
class Pool:
    """The sum over all tasks of one (backend, method): a draft that dies everywhere is noticed sooner."""

    up: float = 0.0
    down: float = 0.0

    def add(self, z: float, n: float) -> str | None:
        """Add standardised increments; return `fall` or `rise` where the limit is reached."""
        self.up = max(0.0, self.up + z - SLACK * n)
        self.down = max(0.0, self.down - z - SLACK * n)
        if self.down >= LIMIT:
            return "fall"
        return "rise" if self.up >= LIMIT else None


@dataclass(slots=True)
class Watches:
    """All detectors of one gateway."""

    tasks: dict[tuple[str, str, str], Watch] = field(default_factory=dict)
    """By (backend, method, task)."""
    pools: dict[tuple[str, str], Pool] = field(default_factory=dict)

    def note(self, backend: str, method: str, task: str, increments: Mapping[int, Moments]) -> set[str]:
        """Feed new requests of one task; return the tasks of this backend and method whose past no longer counts."""
        watch = self.tasks.setdefault((backend, method, task), Watch())
        if watch.recovered(increments):
            return self._all(backend, method, "rise", only_fallen=True)
        z, n = watch.note(increments)
        change = watch.changed()
        if change is not None:
            watch.begin_anew(fallen=change == "fall")
            return {task}
        wide = self.pools.setdefault((backend, method), Pool()).add(z, n)
        return self._all(backend, method, wide) if wide else set()

    def _all(self, backend: str, method: str, change: str, *, only_fallen: bool = False) -> set[str]:
        self.pools[backend, method] = Pool()
        touched = set()
        for (name, kind, task), watch in self.tasks.items():
            if (name, kind) == (backend, method) and (watch.fallen or not only_fallen):
                watch.begin_anew(fallen=change == "fall")
                touched.add(task)
        return touched


def _mean_sd(reference: list[float]) -> tuple[float, float]:
    n, s, ss = reference
    mean = s / n
    variance = (max(0.0, ss - s * mean) + SPREAD_REQUESTS * SPREAD**2) / (n + SPREAD_REQUESTS)
    return mean, max(SPREAD_LEAST, math.sqrt(variance))
