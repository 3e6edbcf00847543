"""`breakeven record-traces`: the file it writes, faults by file and line, interruption and resumption."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from cli.record_traces import record_traces
from cli.simulation.traces import read_traces
from gateway.classify import Classifier

LINES: list[dict[str, Any]] = [
    {"id": "a", "task": "code", "messages": [{"role": "user", "content": "abc abc abc abc"}]},
    {"id": 2, "turns": ["Translate into German: the cat", "and the dog"]},
    {"id": "c", "prompt": "Once upon a time, once upon a time"},
]


def write(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines), "utf-8")
    return path


def record(model: Path, prompts: Path, out: Path, *options: str) -> Result:
    words = ["--prompts", str(prompts), "--out", str(out), "--model", str(model), "--dtype", "float32"]
    return CliRunner().invoke(record_traces, [*words, "--threads", "1", "--max-tokens", "12", "--batch", "2", *options])


def rows(path: Path) -> dict[str, dict[str, Any]]:
    found = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert len({row["id"] for row in found}) == len(found)
    return {row["id"]: row for row in found}


def test_every_form_of_prompt_is_recorded(tmp_path: Path, tiny_model_dir: Path, tiny_draft_dir: Path) -> None:
    out = tmp_path / "traces.jsonl"
    options = ("--draft-model", str(tiny_draft_dir), "--max-draft", "5", "--messages")
    result = record(tiny_model_dir, write(tmp_path / "p.jsonl", LINES), out, *options)
    assert result.exit_code == 0, result.output
    found = rows(out)
    assert set(found) == {"a", "2", "c"}
    assert found["a"]["task"] == "code"
    classified = Classifier.load().classify(
        {"messages": [{"role": "user", "content": turn} for turn in LINES[1]["turns"]]}
    )
    assert found["2"]["task"] == found["2"]["classified_task"] == classified.task
    assert found["a"]["messages"] == LINES[0]["messages"]
    assert found["c"]["prompt_tokens"] == len("Once upon a time, once upon a time")
    for method in ("ngram", "suffix", "draft_model"):
        traces = read_traces(out, method, 1024)
        assert all(len(trace.emitted) == len(trace.drafted or ()) <= 12 for trace in traces)
        assert max(max(trace.drafted or (0,)) for trace in traces) <= 5


def test_a_bad_line_is_named_and_the_others_are_recorded(tmp_path: Path, tiny_model_dir: Path) -> None:
    bad = [
        "{",
        {"task": "code", "prompt": "no id"},
        {"id": "x"},
        {"id": "a", "prompt": "the id of line 1 again"},
        {"id": "y", "messages": [{"role": "nobody", "content": "x"}]},
        {"id": "z", "prompt": "too long " * 500},
        {"id": "d", "messages": [{"role": "user", "content": "{{document}}"}], "document": "one"},
        {"id": "e", "task": "", "prompt": "x"},
    ]
    path = write(tmp_path / "p.jsonl", [LINES[0], *bad, LINES[2]])
    result = record(tiny_model_dir, path, tmp_path / "out.jsonl")
    assert result.exit_code == 1
    assert set(rows(tmp_path / "out.jsonl")) == {"a", "c"}
    wanted = {
        3: "id: ",
        4: "messages",
        5: f"also in {path}:1",
        6: "messages[0].role",
        7: "context length",
        8: "document: ",
    }
    for line, words in {2: "", 9: "task: ", **wanted}.items():
        assert any(one.startswith(f"{path}:{line}: ") and words in one for one in result.output.splitlines()), (
            result.output
        )


def test_an_interrupted_run_goes_on_where_it_was(tmp_path: Path, tiny_model_dir: Path) -> None:
    prompts = write(tmp_path / "p.jsonl", LINES)
    out, whole = tmp_path / "out.jsonl", tmp_path / "whole.jsonl"
    assert record(tiny_model_dir, prompts, whole).exit_code == 0
    first, *rest = whole.read_text("utf-8").splitlines(keepends=True)
    out.write_text(first + rest[0][:40], "utf-8")  # killed while it wrote
    assert record(tiny_model_dir, prompts, out).exit_code == 0
    assert rows(out) == rows(whole)
    assert out.read_text("utf-8").startswith(first)
    before = out.read_bytes()
    assert record(tiny_model_dir, prompts, out).exit_code == 0
    assert out.read_bytes() == before


def test_a_file_of_another_run_is_not_mixed_in(tmp_path: Path, tiny_model_dir: Path) -> None:
    prompts = write(tmp_path / "p.jsonl", LINES)
    out = tmp_path / "out.jsonl"
    assert record(tiny_model_dir, prompts, out).exit_code == 0
    before = out.read_bytes()
    result = record(tiny_model_dir, prompts, out, "--max-draft", "4")
    assert result.exit_code == 1
    assert f"{out}:1: made with " in result.output
    assert "drafts cut at 16" in result.output
    result = record(tiny_model_dir, prompts, out, "--method", "suffix")
    assert f"{out}:1: has the methods ngram, suffix, this run suffix" in result.output
    assert out.read_bytes() == before
    out.write_text('{"id": "foreign"}\n', "utf-8")
    result = record(tiny_model_dir, prompts, out)
    assert result.exit_code == 1
    assert f"{out}:1: not a line of this command" in result.output


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--method", "eagle"), "method: expected one of ngram, suffix, got 'eagle'"),
        (("--temperature", "1", "--draft-model", "x"), "--temperature: expected 0 with --draft-model"),
        (("--dtype", "int8"), "dtype: expected one of"),
        (("--model", "/no/such/model"), "model"),
    ],
)
def test_what_cannot_be_done_is_said(
    options: tuple[str, ...], words: str, tmp_path: Path, tiny_model_dir: Path
) -> None:
    result = record(tiny_model_dir, write(tmp_path / "p.jsonl", LINES), tmp_path / "out.jsonl", *options)
    assert result.exit_code != 0
    assert words in result.output
    assert not isinstance(result.exception, (KeyError, ValueError, OSError))


def test_files_that_are_not_there(tmp_path: Path, tiny_model_dir: Path) -> None:
    result = record(tiny_model_dir, tmp_path / "none.jsonl", tmp_path / "out.jsonl")
    assert f"{tmp_path / 'none.jsonl'}: cannot be read" in result.output
    result = record(tiny_model_dir, write(tmp_path / "p.jsonl", LINES), tmp_path / "no" / "out.jsonl")
    assert f"{tmp_path / 'no' / 'out.jsonl'}: cannot be written" in result.output
