"""What a day came to: time, queues, and whether traffic swung to and fro."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cli.simulation.fleet.run import Day

SMOOTH_S = 3
SWING = 0.25
"""A share that turns by less has not turned."""
SUDDEN_S = 2


def figures(day: Day) -> dict[str, Any]:
    """Return the figures of one day, seconds."""
    jobs = day.jobs
    ends = np.array([job.finished - job.arrived for _, job in jobs])
    waits = np.array([job.started - job.arrived for _, job in jobs])
    tokens = np.array([job.tokens for _, job in jobs])
    share = shares(day)
    return {
        "requests": len(jobs),
        "arms": {str(arm): round(n / len(jobs), 4) for arm, n in sorted(Counter(arm for arm, _ in jobs).items())},
        "mean_end_to_end_s": float(ends.mean()),
        "mean_s_per_token": float(ends.sum() / tokens.sum()),
        "p99_s_per_token": float(np.quantile(ends / tokens, 0.99)),
        "wait_s": {"mean": float(waits.mean()), "p99": float(np.quantile(waits, 0.99)), "max": float(waits.max())},
        "most_waiting": max(sum(sample.waiting.values()) for sample in day.samples),
        "reversals": reversals(share),
        "largest_shift_in_2_s": sudden(share),
        "incumbent_changes_per_gateway": float(np.mean(day.switches)) if day.switches else 0.0,
        "kinds_of_request": day.nodes // max(1, len(day.switches)),
    }


def shares(day: Day) -> NDArray[np.float64]:
    """Return the share of speculative requests by second, as a mean over a few."""
    taken = np.array([sample.speculative for sample in day.samples], dtype=float)
    arrived = np.array([sample.arrived for sample in day.samples], dtype=float)
    window = np.ones(SMOOTH_S)
    share: NDArray[np.float64] = np.convolve(taken, window, "valid") / np.maximum(
        1.0, np.convolve(arrived, window, "valid")
    )
    return share


def reversals(share: NDArray[np.float64], swing: float = SWING) -> int:
    """Return how often a series turned: moved one way by at least `swing` after having moved the other by as much."""
    if len(share) == 0:
        return 0
    turns, direction = 0, 0
    low = high = float(share[0])
    for value in map(float, share):
        low, high = min(low, value), max(high, value)
        if direction <= 0 and value - low >= swing:
            turns += direction < 0
            direction, high = 1, value
            low = value
        elif direction >= 0 and high - value >= swing:
            turns += direction > 0
            direction, low = -1, value
            high = value
        if direction > 0 and value >= high:
            low = value
        elif direction < 0 and value <= low:
            high = value
    return turns


def sudden(share: NDArray[np.float64]) -> float:
    """Return the largest change of the share within two seconds."""
    if len(share) <= SUDDEN_S:
        return 0.0
    return float(np.abs(share[SUDDEN_S:] - share[:-SUDDEN_S]).max())
