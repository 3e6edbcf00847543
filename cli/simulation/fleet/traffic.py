"""A day of open-loop arrivals: requests come when they come, whatever the servers do."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from cli.simulation.fleet.settings import FleetSettings
from cli.simulation.traces import Trace

NIGHT = 0.25
"""The night's rate as a share of the peak's."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request: when, which trace, at which gateway."""

    at: float
    trace: int
    gateway: int
    draw: float


def intensity(part: float) -> float:
    """Return the rate at a part of the day (0 and 1: midnight) as a share of the peak's: one hill, a dip at noon."""
    hill = np.sin(np.pi * part) ** 2 * (1.0 - 0.2 * np.exp(-(((part - 0.5) / 0.04) ** 2)))
    return float(NIGHT + (1.0 - NIGHT) * hill)


def arrivals(settings: FleetSettings, traces: Sequence[Trace]) -> Iterator[Arrival]:
    """Return the day's requests in order (a thinned Poisson process); by night the later tasks prevail."""
    rng = np.random.default_rng([settings.seed, 5])
    uniform = random.Random(settings.seed)  # noqa: S311 - drawn singly, numpy's are ten times as slow
    tasks: dict[str, list[int]] = {}
    for i, trace in enumerate(traces):
        tasks.setdefault(trace.task, []).append(i)
    members = list(tasks.values())
    by_day = np.linspace(1.5, 0.5, len(members)) if len(members) > 1 else np.ones(1)
    number = rng.poisson(settings.sampled_rate * settings.day_s)
    for at in np.sort(rng.random(number) * settings.day_s).tolist():
        now = intensity(at / settings.day_s)
        if uniform.random() < now:
            (task,) = uniform.choices(members, (now * by_day + (1.0 - now) * by_day[::-1]).tolist())
            gateway = uniform.randrange(settings.gateways)
            yield Arrival(at, uniform.choice(task), gateway, uniform.random())
