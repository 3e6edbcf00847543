"""The simulator's times against a reference written from the contract's words alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cli.simulation import baselines
from cli.simulation.costs import read_costs
from cli.simulation.replay import build_table, steps_at
from cli.simulation.traces import Trace

COSTS = """
overhead: 0.0007
target: {fixed: 0.011, per_token: 0.00012, per_kv_token: 2.0e-8}
drafters:
  linear: {fixed: 0.0006, per_draft_token: 0.0004, per_kv_token: 1.0e-9}
  share: {share_of_verify: 0.07}
"""


@pytest.fixture(scope="module")
def costs_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("costs") / "costs.yaml"
    path.write_text(COSTS)
    return path


def reference(trace: Trace, method: str, batch: int, draft_length: int) -> float:
    """Walk the list as the contract describes it."""
    total, position = 0.0, 0
    while position < len(trace.emitted):
        k = draft_length if trace.drafted is None else min(draft_length, trace.drafted[position])
        kv = trace.prompt_tokens + position
        verify = 0.011 + batch * (k + 1) * 0.00012 + batch * kv * 2.0e-8
        draft = 0.0006 + (k + 1) * 0.0004 + batch * kv * 1.0e-9 if method == "linear" else 0.07 * verify
        total += verify + (draft if k else 0.0) + 0.0007
        position += min(trace.emitted[position], k + 1, len(trace.emitted) - position)
    return total


COUNTS = st.lists(st.integers(1, 12), min_size=1, max_size=40)


@given(
    emitted=COUNTS,
    limits=st.one_of(st.none(), st.lists(st.integers(0, 6), min_size=40, max_size=40)),
    prompt=st.integers(0, 5000),
    batch=st.sampled_from([1, 7, 128]),
    k=st.integers(0, 9),
    method=st.sampled_from(["linear", "share"]),
)
@settings(max_examples=200)
def test_times_are_those_of_the_contract(costs_file, emitted, limits, prompt, batch, k, method) -> None:
    drafted = None if limits is None else tuple(limits[: len(emitted)])
    trace = Trace("r", "t", "t", prompt, tuple(emitted), drafted)
    steps = steps_at(trace, read_costs(costs_file, method, batch), k)
    assert steps.seconds == pytest.approx(reference(trace, method, batch, k), rel=1e-9)
    assert sum(steps.emitted) == len(emitted)
    assert all(d <= k for d in steps.drafted)


def test_what_the_controller_is_told_equals_the_times(costs_file: Path) -> None:
    costs = read_costs(costs_file, "linear", 32)
    for k in (1, 4, 8):
        base, per_kv = costs.round_line(k)
        alpha, beta = costs.ratios("linear", k, 32, 900)
        assert (1 + alpha + beta) * costs.plain_s(32, 900) == pytest.approx(base + per_kv * 900)


def made(costs_file: Path, batch: int = 8):
    rng = np.random.default_rng(4)
    traces = [
        Trace(f"{task}{i}", task, task, 100, tuple(rng.geometric(1 - p, 30).tolist()), None)
        for task, p in (("good", 0.8), ("bad", 0.1))
        for i in range(40)
    ]
    return build_table(traces, read_costs(costs_file, "linear", batch), (2, 4))


def test_oracles_are_ordered_and_equal_brute_force(costs_file: Path) -> None:
    table = made(costs_file)
    sequence = np.random.default_rng(1).integers(80, size=300)
    plain = sum(reference(table.traces[i], "linear", 8, 0) for i in sequence)
    fixed = {k: sum(reference(table.traces[i], "linear", 8, k) for i in sequence) / plain for k in (0, 2, 4)}
    by_task = sum(
        min(
            sum(reference(table.traces[i], "linear", 8, k) for i in sequence if table.traces[i].task == t)
            for k in fixed
        )
        for t in ("good", "bad")
    )
    by_request = sum(min(reference(table.traces[i], "linear", 8, k) for k in fixed) for i in sequence)
    assert baselines.fixed(table, sequence) == pytest.approx({"2": fixed[2], "4": fixed[4]})
    assert baselines.best_static(table, sequence) == pytest.approx(min(fixed.values()))
    assert baselines.task_oracle(table, sequence) == pytest.approx(by_task / plain)
    assert baselines.request_oracle(table, sequence) == pytest.approx(by_request / plain)
    naive = baselines.naive_ewma(table, sequence, np.random.default_rng(2))
    assert by_request / plain <= by_task / plain <= naive <= max(fixed.values())
