"""Figures over time for the page's charts: activity roll-ups in even steps, never raw rows. Pure but for the read."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence

import msgspec

from gateway.db import ActivityPoint
from gateway.errors import InvalidRequest

_STEPS = ((3600, 1), (6 * 3600, 5), (24 * 3600, 15), (7 * 86400, 60), (30 * 86400, 240))
"""(window at most, seconds; minutes a step)."""
_DAY = 1440
SUMMED = (
    "requests", "failed", "completion_tokens", "ttft_us", "decode_tokens", "decode_us", "rounds", "accepted",
    "zero_rounds",
)  # fmt: skip
"""The sums that the charts need."""


class Line(msgspec.Struct):
    """One line of a chart; a null where nothing is known."""

    label: str
    values: list[float | None]


class Chart(msgspec.Struct):
    """One chart."""

    id: str
    title: str
    unit: str
    lines: list[Line]


class Series(msgspec.Struct):
    """All charts of a window, over the same times."""

    at: list[int]
    """Unix time of each step's beginning."""
    step_s: int
    charts: list[Chart]


def step_minutes(since_s: float) -> int:
    """Return the step that fits a window: 60 to 180 points."""
    return next((step for longest, step in _STEPS if since_s <= longest), _DAY)


def series_of(points: Sequence[ActivityPoint], since_s: float, now: float) -> Series:
    """Return the charts; steps without traffic are there, and empty. Raises InvalidRequest for too long a window."""
    step = step_minutes(since_s) * 60
    if since_s / step > 2000:
        raise InvalidRequest("since: a chart shows 2000 days at most", param="since")
    times = list(range(int((now - since_s) // step * step), int(now) + 1, step))
    by: dict[tuple[str, int], Counter[str]] = defaultdict(Counter)
    by_task: dict[tuple[str, int], Counter[str]] = defaultdict(Counter)
    for point in points:
        at = point.at // step * step
        by[point.arm.path, at].update(point.sums)
        if point.arm.k:
            by_task[point.task, at].update(point.sums)
    paths = ("plain", "speculative")
    tasks = sorted({task for task, _ in by_task})

    def lines(names: Sequence[str], of: Mapping[tuple[str, int], Sums], value: Value) -> list[Line]:
        empty: Sums = Counter()
        return [Line(name, [value(of.get((name, at), empty)) for at in times]) for name in names]

    charts = [
        Chart("requests", "Requests per second", "", lines(paths, by, lambda s: s["requests"] / step)),
        Chart("tokens", "Tokens per second", "", lines(paths, by, lambda s: s["completion_tokens"] / step)),
        Chart("tpot", "Time per output token, mean", "ms", lines(paths, by, _tpot_ms)),
        Chart("ttft", "Time to first token, mean", "ms", lines(paths, by, _ttft_ms)),
        Chart("a", "Tokens emitted per round, a", "", lines(tasks, by_task, _a)),
        Chart("z", "Rounds that accept nothing, z", "%", lines(tasks, by_task, _z)),
    ]
    return Series(times, step, charts)


Sums = Mapping[str, int]
Value = Callable[[Sums], float | None]


def _tpot_ms(sums: Sums) -> float | None:
    return sums["decode_us"] / sums["decode_tokens"] / 1000 if sums["decode_tokens"] else None


def _ttft_ms(sums: Sums) -> float | None:
    answered = sums["requests"] - sums["failed"]
    return sums["ttft_us"] / answered / 1000 if answered > 0 and sums["ttft_us"] else None


def _a(sums: Sums) -> float | None:
    return 1 + sums["accepted"] / sums["rounds"] if sums["rounds"] else None


def _z(sums: Sums) -> float | None:
    return 100 * sums["zero_rounds"] / sums["rounds"] if sums["rounds"] else None
