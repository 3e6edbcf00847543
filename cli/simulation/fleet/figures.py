"""What a day came to: time, queues, and whether traffic swung to and fro."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cli.simulation.fleet.run import Day

SMOOTH_S = 3
SWING = 0.25
"""A share that turns by less has not turned."""
SUDDEN_S = 2
EVENT_S = 20.0
"""Seconds after an event in which traffic is meant to move."""
WARM_UP_S = 10
"""Seconds at the start of the day in which nothing is known yet."""


def figures(day: Day, events: Sequence[float] = ()) -> dict[str, Any]:
    """Return the figures of one day, seconds. What follows an event within `EVENT_S` is counted apart."""
    jobs = day.jobs
    ends = np.array([job.finished - job.arrived for job in jobs])
    waits = np.array([job.started - job.arrived for job in jobs])
    tokens = np.array([job.tokens for job in jobs])
    share = shares(day)
    switches = [at for gateway in day.switches for at in gateway]
    calm = [at for at in switches if not any(event <= at < event + EVENT_S for event in events)]
    gateways, kinds = max(1, len(day.switches)), max(1, day.nodes)
    return {
        "requests": len(jobs),
        "arms": {str(arm): n / len(jobs) for arm, n in sorted(Counter(job.arm for job in jobs).items())},
        "mean_end_to_end_s": float(ends.mean()),
        "p99_end_to_end_s_per_token": float(np.quantile(ends / tokens, 0.99)),
        "wait_s": {"mean": float(waits.mean()), "p99": float(np.quantile(waits, 0.99)), "max": float(waits.max())},
        "most_waiting": max(sum(sample.waiting.values()) for sample in day.samples),
        "reversals": reversals(share),
        "reversals_beside_events": _calm_reversals(share, events),
        "largest_shift_in_2_s": sudden(share),
        "incumbent_changes_per_gateway": len(switches) / gateways,
        "changes_beside_events_per_kind_and_gateway": len(calm) / kinds,
    }


def _calm_reversals(share: NDArray[np.float64], events: Sequence[float]) -> int:
    """Return the reversals between events, each stretch for itself."""
    total, first = 0, WARM_UP_S
    for event in [*sorted(events), float(len(share))]:
        total += reversals(share[first : int(event)])
        first = int(event + EVENT_S)
    return total


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
