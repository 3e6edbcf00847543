"""All seeds of one simulation, baselines and routed, summed up as the command prints them."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cli.simulation import baselines
from cli.simulation.replay import Table
from cli.simulation.router import Router, Run
from gateway.policy.schema import Rule
from gateway.routing import Tuning

HOLDOUT = 0.01
GUARD_RATIO = 1.1


@dataclass(frozen=True)
class Plan:
    """What to simulate."""

    table: Table
    method: str
    requests_per_task: int
    seeds: int
    rules: Rule | Sequence[Rule] = field(default_factory=lambda: Rule("simulated", holdout=0.0))
    """One for all, or that of each trace."""
    tuning: Tuning = field(default_factory=Tuning)


def simulate(plan: Plan, *, workers: int | None = None) -> dict[str, Any]:
    """Return `relative_time`, `regret`, `switches`, `probe_share` and `p99`, each with mean, sd and max over seeds."""
    seeds = range(plan.seeds)
    workers = min(workers or os.cpu_count() or 1, plan.seeds)
    if workers <= 1:
        rows = [one_seed(plan, seed) for seed in seeds]
    else:
        global _PLAN  # noqa: PLW0603 - inherited by the forked workers, so that the table is not copied to each
        _PLAN = plan
        context = multiprocessing.get_context("fork")
        with ProcessPoolExecutor(workers, mp_context=context) as pool:
            rows = list(pool.map(_one_inherited, seeds))
    result: dict[str, Any] = _summed(rows)
    return result


def draw_sequence(table: Table, requests_per_task: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return indices of traces: N per task, without replacement where there are enough, shuffled across tasks."""
    tasks: dict[str, list[int]] = {}
    for i, trace in enumerate(table.traces):
        tasks.setdefault(trace.task, []).append(i)
    chosen = [
        rng.choice(members, requests_per_task, replace=len(members) < requests_per_task)
        for _, members in sorted(tasks.items())
    ]
    sequence = np.concatenate(chosen)
    rng.shuffle(sequence)
    return sequence


def one_seed(plan: Plan, seed: int) -> dict[str, Any]:
    """Return the figures of one seed, nested as they are printed."""
    table = plan.table
    sequence = draw_sequence(table, plan.requests_per_task, np.random.default_rng([seed, 0]))
    plain = float(table.plain[sequence].sum())
    routed = _routed(plan, sequence, seed, in_flight=False)
    flown = _routed(plan, sequence, seed, in_flight=True)
    oracle = baselines.task_oracle(table, sequence)
    relative = sum(routed.seconds) / plain
    return {
        "relative_time": {
            "always_on": baselines.fixed(table, sequence),
            "best_static": baselines.best_static(table, sequence),
            "task_oracle": oracle,
            "request_oracle": baselines.request_oracle(table, sequence),
            "naive_ewma": baselines.naive_ewma(table, sequence, np.random.default_rng([seed, 1])),
            "routed": relative,
            "routed_in_flight": sum(flown.seconds) / plain,
        },
        "regret": relative / oracle - 1.0,
        "switches": float(routed.switches),
        "probe_share": routed.states.count("probe") / len(sequence),
        "p99": _tails(table, sequence, routed, flown),
        "costs_apart": _apart(table, sequence, relative),
    }


def _apart(table: Table, sequence: NDArray[np.int64], routed: float) -> dict[str, float]:
    """Return what a 1 % holdout and a p99 guard (1.1 times plain's) would cost besides, as a share of routed time.

    Half of the holdout stays plain, half on the draft length nearest 4. The guard leaves the lengths whose p99 over the
    whole sequence passes; its cost is that of the task oracle among those over that among all.
    """
    plain = float(table.plain[sequence].sum())
    fixed_at = min(range(1, len(table.lengths)), key=lambda j: abs(table.lengths[j] - 4))
    fixed = float(table.seconds[sequence, fixed_at].sum()) / plain
    pace = table.seconds[sequence] / table.tokens[sequence][:, None]
    tails = np.quantile(pace, 0.99, axis=0, method="inverted_cdf")
    passing = [j for j in range(len(table.lengths)) if tails[j] <= GUARD_RATIO * tails[0]]
    guarded = baselines.task_oracle(table, sequence, arms=passing) / baselines.task_oracle(table, sequence)
    return {"holdout": HOLDOUT * ((1.0 + fixed) / 2 / routed - 1.0), "p99_guard": guarded - 1.0}


def _routed(plan: Plan, sequence: NDArray[np.int64], seed: int, *, in_flight: bool) -> Run:
    router = Router(plan.table, plan.method, plan.rules, plan.tuning, in_flight=in_flight)
    return router.run(sequence.tolist(), np.random.default_rng([seed, 2]))


def _tails(table: Table, sequence: NDArray[np.int64], routed: Run, flown: Run) -> dict[str, Any]:
    """Return p99 of seconds per token by request: plain, always on and routed."""
    tokens = table.tokens[sequence]

    def tail(seconds: NDArray[np.float64]) -> float:
        return float(np.quantile(seconds / tokens, 0.99, method="inverted_cdf"))

    return {
        "plain": tail(table.plain[sequence]),
        "always_on": {str(k): tail(table.seconds[sequence, j]) for j, k in enumerate(table.lengths) if k},
        "routed": tail(np.array(routed.seconds)),
        "routed_in_flight": tail(np.array(flown.seconds)),
    }


def _summed(rows: list[Any]) -> Any:  # noqa: ANN401 - nested as the rows are
    """Return mean, sd and max over rows at every leaf."""
    if isinstance(rows[0], dict):
        return {key: _summed([row[key] for row in rows]) for key in rows[0]}
    values = np.array(rows, dtype=np.float64)
    sd = float(values.std(ddof=1)) if len(values) > 1 else 0.0
    return {"mean": float(values.mean()), "sd": sd, "max": float(values.max())}


_PLAN: Plan | None = None


def _one_inherited(seed: int) -> dict[str, Any]:
    assert _PLAN is not None  # noqa: S101 - set before the fork
    return one_seed(_PLAN, seed)
