"""What steps cost whose rows verify unlike numbers of tokens: measured ones and the line through them. For `costs.py`.

Such a step takes longer than one of as many tokens spread evenly: rows attend in more and smaller calls, and short rows
are padded to long ones. So they are measured on their own, when the engine is profiled and from then on as they occur.
Costs are in plain steps, and a straight line over the draft tokens in the step is drawn through them.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

SERVED = 48
"""Latest steps kept that occurred while serving, by batch and context band."""
PROFILED = 12
"""Latest steps kept of each kind from the profile."""
NEAR = 0.03
"""Errors up to this, relative to the step's time, weigh in full, larger ones no more than in proportion (Huber)."""
REWEIGHTINGS = 8

Floats = npt.NDArray[np.float64]
Key = tuple[int, int]
"""Batch and context edge."""


@dataclass(frozen=True, slots=True)
class StepLine:
    """Plain steps that a step takes beyond the first, over the draft tokens in it."""

    fixed: float
    """What any draft at all costs."""
    per_token: float

    def at(self, drafted: int) -> float:
        """Return the cost of so many draft tokens in the step; nothing for none."""
        return self.fixed + self.per_token * drafted if drafted else 0.0


class MixedCosts:
    """Samples by batch and context. Not thread-safe: `CostModel` locks."""

    def __init__(self) -> None:
        self._profiled: dict[Key, dict[int, deque[float]]] = {}
        """Plain steps, by draft tokens in the step."""
        self._served: dict[Key, deque[tuple[int, float]]] = {}

    @property
    def keys(self) -> list[Key]:
        """Where there are measurements."""
        return list(self._profiled or self._served)

    def profile(self, key: Key, drafted: int, ratio: float) -> None:
        """Take a step of the profile that took `ratio` plain steps."""
        self._profiled.setdefault(key, {}).setdefault(drafted, deque(maxlen=PROFILED)).append(ratio)

    def serve(self, key: Key, drafted: int, ratio: float) -> None:
        """Take one that occurred while serving."""
        self._served.setdefault(key, deque(maxlen=SERVED)).append((drafted, ratio))

    def line(self, key: Key) -> StepLine | None:
        """Return the line at a key, None where nothing is measured.

        Each kind of step of the profile counts once and so does each step that was served: where the two disagree,
        serving soon has its way.
        """
        kept = self._profiled.get(key, {}).items()
        profiled = [(drafted, statistics.median(ratios)) for drafted, ratios in kept]
        return fit_line([*profiled, *self._served.get(key, ())])

    def medians(self) -> Iterator[tuple[Key, int, float, int]]:
        """Yield key, draft tokens, plain steps and number of samples of each kind of step, for keeping."""
        for key in sorted({*self._profiled, *self._served}):
            every = {drafted: list(ratios) for drafted, ratios in self._profiled.get(key, {}).items()}
            for drafted, ratio in self._served.get(key, ()):
                every.setdefault(drafted, []).append(ratio)
            for drafted, ratios in sorted(every.items()):
                yield key, drafted, statistics.median(ratios), len(ratios)


def fit_line(points: Sequence[tuple[int, float]]) -> StepLine | None:
    """Return the line nearest to points (draft tokens, plain steps); None without any. It starts and rises ≥ 0."""
    if not points:
        return None
    drafted, steps = np.array(points, dtype=np.float64).T
    relative = 1.0 / np.maximum(steps, 1.0)
    weights = relative**2
    for _ in range(REWEIGHTINGS):
        line = _least_squares(drafted, steps - 1.0, weights)
        missed = np.abs(line.fixed + line.per_token * drafted + 1.0 - steps) * relative
        weights = relative**2 * (NEAR / np.maximum(missed, NEAR))
    return line


def _least_squares(x: Floats, y: Floats, weights: Floats) -> StepLine:
    """The weighted line with the least squares among those with no negative coefficient."""
    total = weights.sum()
    mean_x, mean_y = (weights * x).sum() / total, (weights * y).sum() / total
    spread = (weights * (x - mean_x) ** 2).sum()
    slope = (weights * (x - mean_x) * (y - mean_y)).sum() / spread if spread > 0 else mean_y / mean_x
    if slope <= 0:
        return StepLine(max(0.0, float(mean_y)), 0.0)
    fixed = mean_y - slope * mean_x
    if fixed < 0:
        return StepLine(0.0, max(0.0, float((weights * x * y).sum() / (weights * x * x).sum())))
    return StepLine(float(fixed), float(slope))
