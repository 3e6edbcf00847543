"""`breakeven policy simulate`: two policies on the same traces or recorded requests, through the live decision."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from cli.main import main
from cli.policy.replay import trace_of
from cli.simulation.costs import read_costs
from cli.simulation.made_up import TaskSpec, make_traces
from cli.simulation.replay import steps_at
from gateway.db.replays import Replay

COSTS = """
overhead: 0.0002
target: {fixed: 0.02, per_token: 0.002, per_kv_token: 0.0}
drafters: {ngram: {fixed: 0.0001, per_draft_token: 0.00001}}
"""
TASKS = [TaskSpec("code", 0.85, tokens=80), TaskSpec("creative", 0.12, tokens=80)]
PLAIN = "version: 1\nrules: [{name: off, path: plain}]\n"
AUTO = """version: 1
backends: {engine: {url: "http://h", arms: [plain, ngram-k2, ngram-k4]}}
rules:
  - {name: prose, when: {task: creative}, path: plain}
  - {name: rest}
"""


@pytest.fixture
def files(tmp_path: Path) -> Path:
    rows = [
        {"id": t.id, "task": t.task, "prompt_tokens": t.prompt_tokens, "emitted": {"ngram": list(t.emitted)}}
        for t in make_traces(TASKS, 40, seed=1)
    ]
    (tmp_path / "traces.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    (tmp_path / "costs.yaml").write_text(COSTS, encoding="utf-8")
    (tmp_path / "old.yaml").write_text(PLAIN, encoding="utf-8")
    (tmp_path / "new.yaml").write_text(AUTO, encoding="utf-8")
    return tmp_path


def simulate(folder: Path, *options: object) -> tuple[int, str]:
    usual = ["--costs", folder / "costs.yaml", "--requests-per-task", 60, "--seeds", 2]
    arguments = ["policy", "simulate", folder / "old.yaml", folder / "new.yaml", *usual, *options]
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    return result.exit_code, result.output


def test_the_difference_between_two_policies(files: Path):
    code, output = simulate(files, "--traces", files / "traces.jsonl", "--json")
    assert code == 0, output
    found = json.loads(output)
    assert found["old"]["relative_time"] == [1.0, 1.0]
    assert found["old"]["rules"]["off"]["speculative_share"] == 0
    assert found["new"]["rules"]["prose"] == {"requests": 60, "relative_time": 1.0, "speculative_share": 0}
    assert found["new"]["rules"]["rest"]["speculative_share"] > 0.9
    assert found["new"]["rules"]["rest"]["relative_time"] < 0.7
    assert found["draft_lengths"] == [2, 4, 8]
    change = found["change"]
    assert change["relative_time"]["mean"] < -0.1
    assert 0.4 < change["speculative_share"]["mean"] <= 0.5
    code, text = simulate(files, "--traces", files / "traces.jsonl")
    assert code == 0
    assert "time (plain = 1)   1.0000" in text
    assert "note: traces say task and prompt tokens only" in text


def test_what_is_learnt_on_the_way_counts_and_from_when_on_is_the_rules_choice(files: Path):
    """A task that loses is left on the way, later where a rule asks for more confidence."""
    dear = COSTS.replace("per_token: 0.002", "per_token: 0.006")
    (files / "costs.yaml").write_text(dear, encoding="utf-8")
    text = AUTO.replace("  - {name: prose, when: {task: creative}, path: plain}\n", "")
    (files / "old.yaml").write_text(text, encoding="utf-8")
    (files / "new.yaml").write_text(
        text.replace("name: rest", "name: rest, break_even: {confidence: 99.99%}"), encoding="utf-8"
    )
    code, output = simulate(files, "--traces", files / "traces.jsonl", "--json")
    assert code == 0, output
    found = json.loads(output)
    assert max(found["old"]["speculative_share"]) < 0.8
    for patient, usual in zip(found["new"]["speculative_share"], found["old"]["speculative_share"], strict=True):
        assert patient > usual


def test_the_same_policy_twice_differs_in_nothing(files: Path):
    (files / "old.yaml").write_text(AUTO, encoding="utf-8")
    _, output = simulate(files, "--traces", files / "traces.jsonl", "--json")
    for change in json.loads(output)["change"].values():
        assert change == {"mean": 0, "sd": 0, "max": 0}


def record(trace, k: int, costs) -> Replay:
    steps = steps_at(trace, costs, k)
    at = datetime.fromtimestamp(1e9, UTC)
    return Replay(
        trace.id, at, "chat", "m", "k", trace.task, False, 0.0, 1, trace.prompt_tokens, "", "engine", "ngram", k,
        steps.emitted, steps.drafted,
    )  # fmt: skip


def test_recorded_steps_say_what_shorter_drafts_would_have_done(files: Path):
    costs = read_costs(files / "costs.yaml", "ngram", 1)
    traces = make_traces(TASKS, 60, seed=4)
    again = [trace_of(record(trace, 8, costs), 1024) for trace in traces]
    for trace, rebuilt in zip(traces, again, strict=True):
        assert len(rebuilt.emitted) == len(rebuilt.drafted or ()) == len(trace.emitted)
    for k in (1, 2, 4, 8):
        truth = sum(steps_at(trace, costs, k).seconds for trace in traces)
        guess = sum(steps_at(trace, costs, k).seconds for trace in again)
        assert guess == pytest.approx(truth, rel=0.02), k
    assert sum(steps_at(t, costs, 16).seconds for t in again) == sum(steps_at(t, costs, 8).seconds for t in again)


def test_a_fully_accepted_round_is_joined_to_the_next():
    at = datetime.fromtimestamp(1e9, UTC)
    steps = ([5, 5, 2, 1, 1], [4, 4, 4, 0, 3])
    trace = trace_of(Replay("r", at, "chat", "m", "k", "code", False, 0.0, 1, 7, "", "e", "ngram", 4, *steps), 13)
    assert trace.emitted == (12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 1)
    assert trace.drafted == (4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 3, 0)


def test_recorded_requests_come_from_the_database(files: Path):
    from gateway.db import Database
    from gateway.types import Arm, Decision, RequestRecord, Spec

    costs = read_costs(files / "costs.yaml", "ngram", 1)
    records = []
    for trace in make_traces(TASKS, 12, seed=2):
        steps = steps_at(trace, costs, 4)
        spec = Spec(1, 1, 0, [1], step_emitted=steps.emitted, step_drafted=steps.drafted)
        arm = Arm("engine", "ngram", 4)
        records.append(
            RequestRecord(
                trace.id,
                time.time(),
                "chat",
                "m",
                "key",
                trace.task,
                0.9,
                "text",
                arm,
                "e",
                Decision(arm, "", "ok", "", ""),
                False,
                0.0,
                200,
                None,
                "stop",
                trace.prompt_tokens,
                len(trace.emitted),
                0,
                0.0,
                None,
                None,
                1.0,
                [],
                spec,
            )
        )

    async def fill() -> None:
        database = Database(f"sqlite+aiosqlite:///{files / 'breakeven.db'}")
        await database.migrate()
        await database.insert_records(records)
        await database.aclose()

    asyncio.run(fill())
    code, output = simulate(files, "--data-dir", files, "--json")
    assert code == 0, output
    found = json.loads(output)
    assert found["notes"][0] == "24 of 24 recorded requests drafted with ngram; the others are left out"
    assert "24 of them were recorded with drafts below 8 tokens" in found["notes"][1]
    assert found["change"]["relative_time"]["mean"] < 0
    (files / "costs.yaml").write_text(COSTS.replace("ngram:", "suffix:"), encoding="utf-8")
    (files / "new.yaml").write_text(AUTO.replace("ngram", "suffix"), encoding="utf-8")
    code, output = simulate(files, "--data-dir", files, "--method", "suffix")
    assert (code, "no recorded request since 7d drafted with suffix" in output) == (1, True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--traces", "none.jsonl"), "none.jsonl"),
        (("--traces", "traces.jsonl", "--method", "suffix"), "suffix"),
        (("--since", "a week"), "expected a time with its unit"),
    ],
)
def test_simulate_refuses_in_words(
    options: tuple[str, ...], message: str, files: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(files)
    code, output = simulate(files, *options)
    assert code != 0
    assert message in output
    assert "Traceback" not in output
