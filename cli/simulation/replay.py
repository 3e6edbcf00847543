"""Steps and times of each trace at each fixed draft length, worked out once. Called by the baselines and the router."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cli.simulation.costs import CostModel
from cli.simulation.traces import Trace
from gateway.types import CellKey


@dataclass(frozen=True, slots=True)
class Steps:
    """The decode steps of one request at one draft length."""

    emitted: list[int]
    drafted: list[int]
    seconds: float


@dataclass(frozen=True, slots=True)
class Table:
    """All requests of a trace file under one cost model: `seconds[i, j]` is request i at `lengths[j]` (0: plain)."""

    traces: list[Trace]
    costs: CostModel
    lengths: tuple[int, ...]
    """0 first, then the draft lengths on offer, ascending."""
    seconds: NDArray[np.float64]
    steps: list[list[Steps]]
    tokens: NDArray[np.int64]
    cap: int = 1024
    """Output tokens at which traces were cut."""
    observed: dict[tuple[int, int], tuple[CellKey, dict[str, int], NDArray[np.float64]]] = field(default_factory=dict)
    """What the recorder counts of request i at draft length k; filled on first use, the same for every seed."""

    @property
    def plain(self) -> NDArray[np.float64]:
        """Plain seconds by request."""
        column: NDArray[np.float64] = self.seconds[:, 0]
        return column


def build_table(traces: list[Trace], costs: CostModel, draft_lengths: Sequence[int], *, cap: int = 1024) -> Table:
    """Return the table of `traces` at plain and at each of `draft_lengths`."""
    lengths = (0, *sorted(set(draft_lengths) - {0}))
    steps = [[steps_at(trace, costs, k) for k in lengths] for trace in traces]
    seconds = np.array([[one.seconds for one in row] for row in steps])
    return Table(traces, costs, lengths, seconds, steps, np.array([len(trace.emitted) for trace in traces]), cap)


def steps_at(trace: Trace, costs: CostModel, k: int) -> Steps:
    """Return what a request does at draft length `k` throughout (0: plain)."""
    size = len(trace.emitted)
    if k == 0:
        base, per_kv = costs.round_line(0)
        contexts = size * trace.prompt_tokens + size * (size - 1) / 2
        return Steps([1] * size, [0] * size, size * base + per_kv * contexts)
    emitted: list[int] = []
    drafted: list[int] = []
    seconds = 0.0
    lines = [costs.round_line(d) for d in range(k + 1)]
    at = 0
    limits = trace.drafted
    while at < size:
        d = k if limits is None else min(k, limits[at])
        e = min(trace.emitted[at], d + 1, size - at)
        base, per_kv = lines[d]
        seconds += base + per_kv * (trace.prompt_tokens + at)
        emitted.append(e)
        drafted.append(d)
        at += e
    return Steps(emitted, drafted, seconds)
