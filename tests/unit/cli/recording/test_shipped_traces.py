"""The traces and costs in `benchmarks/traces` are whole, and the simulator's answer to them is sane."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner

from cli.simulate import simulate
from cli.simulation.costs import read_costs
from cli.simulation.traces import read_traces

FOLDER = Path(__file__).parents[4] / "benchmarks" / "traces"
TRACES, COSTS = FOLDER / "smollm2.jsonl", FOLDER / "costs.yaml"


@pytest.mark.parametrize("method", ["ngram", "suffix"])
def test_forty_requests_of_every_task_and_lists_that_agree(method: str) -> None:
    traces = read_traces(TRACES, method, 1024)
    tasks = Counter(trace.task for trace in traces)
    assert len(tasks) == 8
    assert set(tasks.values()) == {40}
    for trace in traces:
        drafted = trace.drafted
        assert drafted is not None
        size = len(trace.emitted)
        assert len(drafted) == size <= 96
        for at, (emitted, proposed) in enumerate(zip(trace.emitted, drafted, strict=True)):
            assert 1 <= emitted <= min(proposed + 1, size - at)
            assert proposed <= min(16, 95 - at)


def test_no_text_is_shipped_and_the_file_is_small() -> None:
    lines = TRACES.read_text("utf-8").splitlines()
    assert not any("messages" in json.loads(line) for line in lines)
    assert TRACES.stat().st_size < 2_000_000
    prompts = {json.loads(line)["id"] for line in (FOLDER / "prompts.jsonl").read_text("utf-8").splitlines()}
    assert {json.loads(line)["id"] for line in lines} <= prompts


@pytest.mark.parametrize("method", ["ngram", "suffix"])
def test_costs_are_those_of_a_cpu(method: str) -> None:
    costs = read_costs(COSTS, method, 1)
    assert costs.plain_s(1, 200) > 0
    alpha, beta = costs.ratios(method, 4, 1, 200)
    assert 0 <= alpha < 0.1  # a look-up costs next to nothing beside a pass
    assert 0 <= beta < 1  # five tokens cost less than two passes
    assert read_costs(COSTS, method, 8).ratios(method, 4, 8, 200)[1] > beta


@pytest.mark.slow
def test_the_simulator_finds_what_they_are_worth() -> None:
    words = ["--traces", str(TRACES), "--costs", str(COSTS), "--method", "ngram", "--draft-lengths", "2,4,8"]
    words += ["--batch", "1", "--requests-per-task", "40", "--seeds", "3", "--workers", "1", "--json"]
    result = CliRunner().invoke(simulate, words)
    assert result.exit_code == 0, result.output
    relative = json.loads(result.output)["relative_time"]
    best, routed = relative["best_static"]["mean"], relative["routed"]["mean"]
    always_on = [relative["always_on"][k]["mean"] for k in ("2", "4", "8")]
    assert best <= min(1.0, *always_on) + 1e-9
    assert relative["request_oracle"]["mean"] <= relative["task_oracle"]["mean"] + 1e-9 <= best + 2e-9
    assert 0.1 < relative["request_oracle"]["mean"] < 1.0
    assert routed <= 1.03 * best
    assert relative["routed_in_flight"]["max"] < 1.0
