"""The decision's figures on made-up traffic: a small part here, all with `-m verify` (see benchmarks/results)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from cli.simulation.costs import CostModel, Line
from cli.simulation.made_up import TaskSpec, make_traces
from cli.simulation.pools import PoolRouter
from cli.simulation.replay import Table, build_table
from cli.simulation.router import Router
from cli.simulation.run import Plan, draw_sequence, simulate
from gateway.policy.schema import Rule
from gateway.routing import Tuning
from tests.unit.cli.simulation.regimes import REGIMES, costs, table, tasks

RESULTS = Path(__file__).resolve().parents[4] / "benchmarks" / "results"
RULE = Rule("simulated", holdout=0.0)


def figures(result: dict[str, Any]) -> dict[str, float]:
    times = result["relative_time"]
    found = {name: times[name]["mean"] for name in times if name != "always_on"}
    return found | {"worst_regret": result["regret"]["max"], "switches": result["switches"]["mean"]}


def missed(f: dict[str, float], *, long: bool = False) -> list[str]:
    """Return the figures that a simulation misses, in words."""
    routed, oracle, flown = f["routed"], f["task_oracle"], f["routed_in_flight"]
    limits = {
        "best_static": (routed, (1.005 if long else 1.01) * f["best_static"]),
        "task_oracle": (routed, (1.005 if long else 1.015) * oracle),
        "naive_ewma": (routed, 1.01 * f["naive_ewma"]),
        "in flight, task_oracle": (flown, 1.005 * oracle),
    }
    if not long:
        limits["worst seed"] = (1 + f["worst_regret"], 1.03)
    return [f"{name}: {value:.4f} > {limit:.4f}" for name, (value, limit) in limits.items() if value > limit]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "batch"), [("mixed", 32), ("off is best", 128)])
def test_routing_keeps_to_its_figures(name: str, batch: int) -> None:
    plan = Plan(table(name, batch, 5, per_task=150), "made-up", 300, 1)
    assert missed(figures(simulate(plan, workers=1))) == []


@pytest.mark.verify
def test_all_regimes_at_1200_requests() -> None:
    rows = {}
    for name in REGIMES:
        for batch in (1, 32, 128):
            rows[f"{name}, batch {batch}"] = figures(simulate(Plan(table(name, batch, 71), "made-up", 300, 20)))
            write("routing_1200", rows)
    assert {where: misses for where, f in rows.items() if (misses := missed(f))} == {}


@pytest.mark.verify
def test_some_regimes_at_12000_requests() -> None:
    rows = {}
    for name in ("mixed", "strong draft", "n-gram", "off is best", "requests differ"):
        for batch in (1, 32, 128):
            rows[f"{name}, batch {batch}"] = figures(simulate(Plan(table(name, batch, 72), "made-up", 3000, 4)))
    write("routing_12000", rows)
    assert {where: misses for where, f in rows.items() if (misses := missed(f, long=True))} == {}


GOOD = {"code": 0.8, "chat": 0.6, "math": 0.7, "creative": 0.75}


def segments(kind: str) -> list[list[TaskSpec]]:
    good = [TaskSpec(name, p, 0.4) for name, p in GOOD.items()]
    dead = [TaskSpec(name, 0.02, 0.1, 0.1) for name in GOOD]
    weak = [TaskSpec(name, p, 0.4) for name, p in zip(GOOD, (0.2, 0.15, 0.25, 0.2), strict=True)]
    halved = [TaskSpec(name, 0.55 * p, 0.4) for name, p in GOOD.items()]
    return {
        "collapse": [good, dead],
        "collapse and recovery": [good, dead, good],
        "drift": [good, halved],
        "improvement": [weak, good],
        "one task collapses and recovers": [good, [dead[0], *good[1:]], good],
    }[kind]


def changing(kind: str, batch: int, requests: int, seed: int) -> tuple[Table, list[np.ndarray]]:
    """Return a table and, segment by segment, the sequence of its requests."""
    parts = segments(kind)
    traces = [make_traces(part, 200, 10 * seed + i) for i, part in enumerate(parts)]
    made = build_table([trace for segment in traces for trace in segment], costs(batch), (2, 4, 8))
    edges = np.cumsum([0, *(len(segment) for segment in traces)])
    rng = np.random.default_rng([seed, 9])
    return made, [rng.integers(edges[i], edges[i + 1], requests // len(parts)) for i in range(len(parts))]


def extra_time(made: Table, parts: Sequence[np.ndarray], seed: int, *, in_flight: bool) -> float:
    """Return time over that of an oracle that knows the segments and the best arm of each task in each."""
    names = np.array([trace.task for trace in made.traces])
    oracle = sum(made.seconds[part[names[part] == task]].sum(axis=0).min() for part in parts for task in GOOD)
    router = Router(made, "made-up", RULE, Tuning(), in_flight=in_flight)
    run = router.run(np.concatenate(parts).tolist(), np.random.default_rng([seed, 2]))
    return sum(run.seconds) / float(oracle) - 1.0


@pytest.mark.slow
def test_collapse_and_recovery_cost_little_in_flight() -> None:
    made, parts = changing("collapse and recovery", 32, 1200, 3)
    assert extra_time(made, parts, 3, in_flight=True) <= 0.03


@pytest.mark.verify
@pytest.mark.parametrize("kind", ["collapse", "collapse and recovery", "drift", "improvement"])
def test_changes_cost_at_most_3_percent(kind: str) -> None:
    rows = {}
    for in_flight, requests, seeds in ((True, 1200, 10), (True, 12000, 2), (False, 12000, 3)):
        values = []
        for seed in range(seeds):
            made, parts = changing(kind, 32, requests, seed)
            values.append(extra_time(made, parts, seed, in_flight=in_flight))
        rows[f"{'in flight' if in_flight else 'routed'}, {requests} requests"] = float(np.mean(values))
    write(f"routing_{kind.replace(' ', '_')}", rows)
    assert {where: value for where, value in rows.items() if value > 0.03} == {}


def pool_regret(name: str, batch: int, requests: int, seeds: int) -> float:
    made = table(name, batch, 73, lengths=(4,))
    values = []
    for seed in range(seeds):
        sequence = draw_sequence(made, requests, np.random.default_rng([seed, 0]))
        router = PoolRouter(made, "made-up", RULE, Tuning(), noise=0.1)
        run = router.run(sequence.tolist(), np.random.default_rng([seed, 2]))
        names = np.array([trace.task for trace in made.traces])[sequence]
        rows = made.seconds[sequence]
        oracle = sum(rows[names == task].sum(axis=0).min() for task in np.unique(names))
        values.append(sum(run.seconds) / float(oracle) - 1.0)
    return float(np.mean(values))


@pytest.mark.slow
def test_two_pools_without_costs() -> None:
    assert pool_regret("mixed", 32, 200, 1) <= 0.03


@pytest.mark.verify
def test_two_pools_in_all_regimes() -> None:
    rows = {}
    for name in ("mixed", "strong draft", "off is best", "requests differ"):
        for batch in (1, 32, 128):
            rows[f"{name}, batch {batch}, 1,200 requests"] = (pool_regret(name, batch, 300, 5), 0.03)
    for name in ("mixed", "off is best"):
        rows[f"{name}, batch 32, 12,000 requests"] = (pool_regret(name, 32, 3000, 1), 0.01)
    write("routing_pools", {where: value for where, (value, _) in rows.items()})
    assert {where: value for where, (value, limit) in rows.items() if value > limit} == {}


def null_table(seed: int) -> Table:
    """Arms that are all alike in truth: drafts at k = 2 and k = 4 cost just what they gain over these traces."""
    alike = make_traces(tasks(0.5), 400, seed)
    traces = [msgspec.structs.replace(trace, task=name, seen_task=name) for name in GOOD for trace in alike]
    verify = Line(0.010, 32 * 4e-5, 0.0)
    plain = verify.at(0, 0)
    free = build_table(traces, CostModel(32, 0.0, verify, Line(0.0, 0.0, 0.0)), (2, 4))
    worth = [plain * free.tokens.sum() / sum(len(row[j].emitted) for row in free.steps) for j in (1, 2)]
    two, four = worth[0] - verify.at(2, 0), worth[1] - verify.at(4, 0)
    slope = (four - two) / 2
    return build_table(traces, CostModel(32, 0.0, verify, Line(two - 3 * slope, slope, 0.0)), (2, 4))


def null_switches(requests: int, seed: int) -> int:
    made = null_table(seed)
    assert made.seconds.sum(axis=0) == pytest.approx(made.plain.sum(), rel=1e-6)
    router = Router(made, "made-up", RULE, Tuning(), in_flight=False)
    sequence = np.random.default_rng([seed, 1]).integers(len(made.traces), size=requests)
    return router.run(sequence.tolist(), np.random.default_rng([seed, 2])).switches


@pytest.mark.slow
def test_arms_that_are_alike_hardly_ever_change() -> None:
    assert null_switches(2000, 1) <= 1


@pytest.mark.verify
def test_at_most_two_changes_in_10_000_requests_where_arms_are_alike() -> None:
    changes = [null_switches(10_000, seed) for seed in range(10)]
    write("routing_null", {"changes per 10,000 requests": changes})
    assert np.mean(changes) <= 2


def write(name: str, rows: dict[str, Any]) -> None:
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(rows, indent=1) + "\n")
