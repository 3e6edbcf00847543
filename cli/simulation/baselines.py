"""What the routed time is compared with: fixed choices, oracles that know the sequence, and naive control."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cli.simulation.replay import Table

NAIVE_FORGET = 0.98
NAIVE_HYSTERESIS = 0.03
NAIVE_PROBES = 0.02


def fixed(table: Table, sequence: NDArray[np.int64]) -> dict[str, float]:
    """Return the relative time of each draft length held throughout."""
    plain = table.plain[sequence].sum()
    sums = table.seconds[sequence].sum(axis=0) / plain
    return {str(k): float(sums[j]) for j, k in enumerate(table.lengths) if k}


def best_static(table: Table, sequence: NDArray[np.int64]) -> float:
    """Return the relative time of the one arm, plain included, that was best for the whole sequence."""
    return float(table.seconds[sequence].sum(axis=0).min() / table.plain[sequence].sum())


def task_oracle(table: Table, sequence: NDArray[np.int64], arms: Sequence[int] | None = None) -> float:
    """Return the relative time of the best arm of each task, among some columns of the table (default: all)."""
    tasks = np.array([trace.task for trace in table.traces])[sequence]
    rows = table.seconds[sequence] if arms is None else table.seconds[sequence][:, list(arms)]
    best = sum(float(rows[tasks == task].sum(axis=0).min()) for task in np.unique(tasks))
    return best / float(table.plain[sequence].sum())


def request_oracle(table: Table, sequence: NDArray[np.int64]) -> float:
    """Return the relative time of the best arm of each request, held from its first token to its last."""
    return float(table.seconds[sequence].min(axis=1).sum() / table.plain[sequence].sum())


@dataclass(slots=True)
class _Naive:
    """One task under naive control: a request-weighted moving average of relative time per arm."""

    on: int
    means: dict[int, float] = field(default_factory=lambda: {0: 1.0})

    def learn(self, arm: int, relative: float) -> None:
        if arm:
            before = self.means.get(arm, relative)
            self.means[arm] = NAIVE_FORGET * before + (1 - NAIVE_FORGET) * relative
        best = min(self.means, key=lambda j: self.means[j])
        if self.means[best] < (1 - NAIVE_HYSTERESIS) * self.means.get(self.on, 1.0):
            self.on = best


def naive_ewma(table: Table, sequence: NDArray[np.int64], rng: np.random.Generator) -> float:
    """Return the relative time of naive control: λ 0.98, 3 % hysteresis, 2 % probes, starting with the largest k."""
    tasks: Mapping[str, _Naive] = {trace.seen_task: _Naive(len(table.lengths) - 1) for trace in table.traces}
    draws, arms = rng.random(len(sequence)), rng.integers(len(table.lengths), size=len(sequence))
    total = 0.0
    for i, draw, other in zip(sequence, draws, arms, strict=True):
        task = tasks[table.traces[i].seen_task]
        arm = int(other) if draw < NAIVE_PROBES else task.on
        seconds = float(table.seconds[i, arm])
        total += seconds
        task.learn(arm, seconds / float(table.plain[i]))
    return total / float(table.plain[sequence].sum())
