"""`breakeven simulate` as users meet it: what it prints, and what it says about bad files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from cli.simulate import simulate

COSTS = """
overhead: 0
target: {fixed: 0.01, per_token: 0.0001}
drafters: {eagle: {fixed: 0.001, per_draft_token: 0.0002}}
"""


def row(**changes: Any) -> dict[str, Any]:
    return {"id": "1", "task": "code", "prompt_tokens": 10, "emitted": {"eagle": [3, 2, 1, 4]}} | changes


def run(tmp_path: Path, rows: list[Any], *options: str, costs: str = COSTS, method: str = "eagle") -> Any:
    traces, costs_file = tmp_path / "t.jsonl", tmp_path / "c.yaml"
    traces.write_text("\n".join(r if isinstance(r, str) else json.dumps(r) for r in rows))
    costs_file.write_text(costs)
    arguments = ["--traces", str(traces), "--costs", str(costs_file), "--method", method, "--workers", "1", *options]
    return CliRunner().invoke(simulate, arguments)


def test_prints_the_object_of_the_contract(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    rows = [
        row(
            id=str(i),
            task=task,
            emitted={"eagle": rng.geometric(1 - p, 40).tolist()},
            messages=[],
            classified_task=None,
        )
        for task, p in (("code", 0.8), ("chat", 0.2))
        for i in range(30)
    ]
    options = ("--draft-lengths", "2,5", "--batch", "4", "--requests-per-task", "50", "--seeds", "2", "--json")
    result = run(tmp_path, rows, *options)
    assert result.exit_code == 0, result.output
    printed = json.loads(result.output)
    assert set(printed) >= {"settings", "relative_time", "regret", "switches", "probe_share", "p99"}
    assert printed["settings"]["draft_lengths"] == [2, 5]
    times = printed["relative_time"]
    assert set(times) == {
        *("always_on", "best_static", "task_oracle", "request_oracle", "naive_ewma", "routed", "routed_in_flight"),
    }
    assert set(times["always_on"]) == {"2", "5"}
    for leaf in (times["routed"], printed["regret"], printed["p99"]["routed"], times["always_on"]["5"]):
        assert set(leaf) == {"mean", "sd", "max"}
    assert times["request_oracle"]["mean"] <= times["task_oracle"]["mean"] <= times["best_static"]["mean"]
    again = run(tmp_path, rows, *options)
    assert again.output == result.output


BAD_ROWS = [
    ("{", "t.jsonl:1: expected one JSON object a line"),
    ("[1]", "t.jsonl:1: expected one JSON object a line"),
    (row(task=""), "t.jsonl:1: task: expected a non-empty string"),
    (row(prompt_tokens=-1), "t.jsonl:1: prompt_tokens: expected a whole number from 0"),
    (row(prompt_tokens=True), "t.jsonl:1: prompt_tokens: expected a whole number"),
    (row(emitted=[1]), "t.jsonl:1: emitted: expected an object from method to list"),
    (row(emitted={"ngram": [1]}), "t.jsonl:1: emitted.eagle: expected a list for this method (methods here: ngram)"),
    (row(emitted={"eagle": []}), "t.jsonl:1: emitted.eagle: expected at least one number"),
    (row(emitted={"eagle": [1, 0]}), "t.jsonl:1: emitted.eagle: expected at least one number, each at least 1"),
    (row(emitted={"eagle": [1.5]}), "t.jsonl:1: emitted.eagle: expected a list of whole numbers"),
    (row(drafted={"eagle": [1]}), "t.jsonl:1: drafted.eagle: expected 4 numbers as in emitted, found 1"),
    (row(classified_task=3), "t.jsonl:1: classified_task: expected a non-empty string"),
]


@pytest.mark.parametrize(("bad", "message"), BAD_ROWS)
def test_bad_traces_name_file_line_and_field(tmp_path: Path, bad: Any, message: str) -> None:
    result = run(tmp_path, [bad])
    assert result.exit_code == 1
    assert message in result.output


BAD_COSTS = [
    ("", "expected the keys overhead, target and drafters"),
    ("a: [", "c.yaml:1: expected YAML"),
    ("[]", "c.yaml:1: expected an object"),
    ("overhead: 1\ntarget: {fixed: x, per_token: 1}\n", "c.yaml:2: target.fixed: expected a number of seconds"),
    ("target: {fixed: -1, per_token: 1}\n", "c.yaml:1: target.fixed: expected a number of seconds, not negative"),
    ("target: {fixed: 1}\n", "c.yaml:1: target.per_token: expected a number of seconds"),
    ("target: {fixed: 1, per_tokens: 1}\n", "c.yaml:1: target.per_tokens: unknown key"),
    ("targets: {}\n", "c.yaml:1: targets: unknown key, expected one of overhead, target, drafters"),
    ("target: {fixed: 1, per_token: 1}\n", "c.yaml:1: drafters: expected an object from method to costs"),
    ("target: {fixed: 1, per_token: 1}\ndrafters:\n  x: {}\n", "drafters.eagle: expected costs (methods here: x)"),
    (
        "target: {fixed: 1, per_token: 1}\ndrafters:\n  eagle: {share_of_verify: 0.1, fixed: 1}\n",
        "c.yaml:3: drafters.eagle: expected share_of_verify alone",
    ),
]


@pytest.mark.parametrize(("costs", "message"), BAD_COSTS)
def test_bad_costs_name_file_line_and_field(tmp_path: Path, costs: str, message: str) -> None:
    result = run(tmp_path, [row()], costs=costs)
    assert result.exit_code == 1
    assert message in result.output


@pytest.mark.parametrize("lengths", ["", "a", "0", "2,99", "-1", "2;4"])
def test_bad_draft_lengths_are_usage_errors(tmp_path: Path, lengths: str) -> None:
    result = run(tmp_path, [row()], "--draft-lengths", lengths)
    assert result.exit_code == 2
    assert "such as 2,4,8" in result.output


def test_missing_files_and_a_bad_policy_are_said(tmp_path: Path) -> None:
    policy = tmp_path / "p.yaml"
    policy.write_text("rules: 3\n")
    assert "p.yaml:" in run(tmp_path, [row()], "--policy", str(policy)).output
    missing = run(tmp_path, [row()], "--policy", str(tmp_path / "none.yaml"))
    assert missing.exit_code == 1
    gone = CliRunner().invoke(simulate, ["--traces", "/nowhere", "--costs", "/nowhere", "--method", "x"])
    assert "/nowhere: cannot be read" in gone.output
