"""The decision's figures on made-up traffic: a small part here, all of it with `-m verify`."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from benchmarks._routing_limits import missed
from benchmarks._routing_settings import costs, table, tasks
from benchmarks.routing_figures import code_behind, run, show
from cli.simulation.costs import CostModel, Line
from cli.simulation.made_up import TaskSpec, make_traces
from cli.simulation.pools import PoolRouter
from cli.simulation.replay import Table, build_table
from cli.simulation.router import Router
from cli.simulation.run import Plan, draw_sequence, one_seed
from gateway.policy.schema import Rule
from gateway.routing import Tuning

RESULTS = Path(__file__).resolve().parents[4] / "benchmarks" / "results"
RULE = Rule("simulated", holdout=0.0)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "batch"), [("mixed", 32), ("off is best", 128)])
def test_routing_keeps_to_its_figures(name: str, batch: int) -> None:
    result = one_seed(Plan(table(name, batch, 5, 150), "made-up", 300, 1), 0)
    misses = missed(result["relative_time"] | {"worst_regret": result["regret"]})
    assert [miss for miss in misses if not miss.startswith("3 %")] == []  # naive control is but 3 % off there itself


def test_misses_are_told() -> None:
    good = {"always_on": {"2": 1.2, "4": 1.3}, "best_static": 1.0, "task_oracle": 0.8, "request_oracle": 0.7}
    good |= {"naive_ewma": 0.9, "routed": 0.81, "routed_in_flight": 0.705, "worst_regret": 0.02}
    assert missed(good) == []
    assert missed(good | {"routed": 0.88})[:2] == [
        "task_oracle: 0.8800 > 0.8120",
        "3 % better than naive_ewma: 0.8800 > 0.8730",
    ]
    assert missed(good | {"routed_in_flight": 0.72}) == ["in flight, request_oracle: 0.7200 > 0.7070"]
    assert missed(good | {"routed_in_flight": 0.73, "greedy_bayes": 0.72}) == [], "0.75 of what could be closed"
    assert len(missed(good, long=True)) == 1, "many requests leave less room"


@pytest.mark.verify
@pytest.mark.parametrize(("requests", "seeds"), [(1200, 20), (12_000, 4)])
def test_every_kind_of_traffic(requests: int, seeds: int) -> None:
    rows = run(requests, seeds, [], os.cpu_count() or 1)
    assert {where: misses for where, row in rows.items() if (misses := missed(row, long=requests > 1200))} == {}


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


def test_the_table_says_which_rows_other_code_has_made() -> None:
    names = ("best_static", "task_oracle", "request_oracle", "naive_ewma", "routed", "routed_in_flight")
    row: dict[str, Any] = dict.fromkeys(names, 1.0) | {"always_on": {"4": 1.0}, "worst_regret": 0.0, "seeds": 4}
    present, other = show({"one": row | {"code": code_behind()}, "other": row | {"code": "0"}}, 1200).splitlines()[1:]
    assert present.endswith("1.0000  pass")
    assert other.endswith("1.0000  older code: pass")


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
    alike = make_traces(list(tasks(0.5)), 400, seed)
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
