"""Ratios from alternating pairs, bootstrap intervals, and what else ran meanwhile. Used by the engine's benchmarks."""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

PAIRS = 15
MAX_OTHER_LOAD = 0.3
"""A ratio is void where other processes kept more than this many cores busy."""


@dataclass(frozen=True)
class Ratio:
    """How many times as fast as `base` something is: the median of paired ratios and its 95 % bootstrap interval."""

    ratio: float
    low: float
    high: float
    pairs: int
    seconds: float
    """Median seconds of the measured side."""
    base_seconds: float
    other_load: float
    void: bool

    def figures(self) -> dict[str, Any]:
        """Return it as JSON values, rounded."""
        return {name: round(value, 4) if isinstance(value, float) else value for name, value in asdict(self).items()}


def interval(values: Sequence[float], *, draws: int = 4000, seed: int = 0) -> tuple[float, float]:
    """Return the 95 % percentile bootstrap interval of the median."""
    rng = random.Random(seed)
    medians = sorted(statistics.median(rng.choices(values, k=len(values))) for _ in range(draws))
    return medians[int(draws * 0.025)], medians[int(draws * 0.975)]


class OtherLoad:
    """Cores kept busy by other processes while the block ran (Linux; 0 elsewhere)."""

    def __enter__(self) -> OtherLoad:
        self.cores = 0.0
        self._start = _busy(), time.process_time(), time.perf_counter()
        return self

    def __exit__(self, *failure: object) -> None:
        busy, own, wall = self._start
        passed = max(1e-9, time.perf_counter() - wall)
        self.cores = max(0.0, (_busy() - busy) - (time.process_time() - own)) / passed


def _busy() -> float:
    """CPU seconds spent by all processes since the machine started."""
    try:
        fields = [int(value) for value in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    except OSError:
        return 0.0
    idle = fields[3] + fields[4]
    return (sum(fields[:8]) - idle) / os.sysconf("SC_CLK_TCK")


def compare(measured: Callable[[], float], base: Callable[[], float], *, pairs: int = PAIRS) -> Ratio:
    """Run both in alternation, the first of each pair changing; both return seconds for the same work."""
    times: list[tuple[float, float]] = []
    measured(), base()  # both are warm before anything counts
    with OtherLoad() as other:
        for pair in range(pairs):
            if pair % 2:
                reference = base()
                times.append((measured(), reference))
            else:
                own = measured()
                times.append((own, base()))
    ratios = [reference / own for own, reference in times]
    low, high = interval(ratios)
    return Ratio(
        statistics.median(ratios),
        low,
        high,
        pairs,
        statistics.median(own for own, _ in times),
        statistics.median(reference for _, reference in times),
        other.cores,
        other.cores > MAX_OTHER_LOAD,
    )
