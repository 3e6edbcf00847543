"""`breakeven distill`: which prompts are read, how they are dealt out, and what bad input is told."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner

from cli.distill.prompts import PromptReader, in_turns
from cli.main import main


def write(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def row(number: int, task: str = "code", family: str = "") -> dict[str, object]:
    return {"id": f"{task}-{number}", "task": task, "family": family, "messages": [{"role": "user", "content": "Hi"}]}


def test_families_are_held_out_whole(tmp_path: Path) -> None:
    rows = [row(number, family=f"family-{number // 5}") for number in range(400)]
    path = write(tmp_path / "p.jsonl", rows)
    prompts = PromptReader(share=0.2, documents=None).read(path)
    splits = {f"family-{number // 5}": {prompts[number].split} for number in range(400)}
    for number, prompt in enumerate(prompts):
        splits[f"family-{number // 5}"].add(prompt.split)
    assert all(len(found) == 1 for found in splits.values())
    counts = Counter(prompt.split for prompt in prompts)
    assert 30 < counts["held-out"] < 140
    assert 30 < counts["choose"] < 140
    judged = PromptReader(share=0.2, documents=None)
    judged.read(write(tmp_path / "q.jsonl", [row(1, "math")]), held_out=True)
    assert Counter(prompt.split for prompt in judged.read(path)) == {
        "choose": counts["choose"],
        "train": 400 - counts["choose"],
    }


def test_tasks_take_turns(tmp_path: Path) -> None:
    rows = [row(number, task) for task in ("chat", "code", "math") for number in range(4)]
    dealt = in_turns(PromptReader(share=0, documents=None).read(write(tmp_path / "p.jsonl", rows)))
    assert [prompt.task for prompt in dealt] == ["chat", "code", "math"] * 4


def test_languages_can_be_chosen(tmp_path: Path) -> None:
    rows = [row(1) | {"language": "en"}, row(2) | {"language": "de"}, row(3)]
    reader = PromptReader(share=0, documents=None, languages=["en"])
    assert [prompt.id for prompt in reader.read(write(tmp_path / "p.jsonl", rows))] == ["code-1", "code-3"]


def test_recorded_traffic_and_documents(tmp_path: Path) -> None:
    recorded = {"request_id": "r1", "task": "chat", "end_user": "u", "prompt": [{"role": "user", "content": "Hello"}]}
    pasted = {
        "id": "d1",
        "task": "code",
        "document": "note",
        "messages": [{"role": "user", "content": "{{document}}!"}],
    }
    note = write(tmp_path / "d.jsonl", [{"id": "note", "text": 'a "b"'}])
    reader = PromptReader(share=0, documents=note)
    prompts = reader.read(write(tmp_path / "p.jsonl", [recorded, pasted]))
    assert [prompt.id for prompt in prompts] == ["r1", "d1"]
    assert prompts[1].body["messages"][0]["content"] == 'a "b"!'
    assert reader.read(write(tmp_path / "q.jsonl", [row(1)]), held_out=True)[0].split == "held-out"


def test_lines_that_are_no_prompts_are_named(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"id": "a", "messages": []}\n{"id": "a", "turns": ["x"]}\nnothing\n{"turns": ["x"]}\n')
    reader = PromptReader(share=0, documents=None)
    reader.read(path)
    text = "\n".join(reader.faults)
    assert f"{path}:2: id: expected a new one, 'a' is also in {path}:1" in text
    assert f"{path}:3:" in text
    assert f"{path}:4: id: expected a string or a number" in text


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["generate", "--work", "W", "--prompts", "none.jsonl"], "none.jsonl: cannot be read: No such file"),
        (["generate", "--work", "W", "--prompts", "p.jsonl", "--temperature", "3"], "3.0 is not in the range 0<=x<=2"),
        (["generate", "--work", "W", "--prompts", "p.jsonl", "--dtype", "int8"], "dtype: expected one of"),
        (["generate", "--work", "W"], "expected at least one prompt"),
        (["train", "--work", "W", "--out", "O", "--kind", "tree"], "'tree' is not one of"),
        (["train", "--work", "W", "--out", "O", "--threads", "-2"], "threads: expected 0"),
        (["train", "--work", "W", "--out", "O", "--begin-with", "no.st"], "--begin-with: no.st: No such file"),
        (["evaluate", "--work", "W", "--head", "h", "--draft-model", "d"], "--head: expected no --draft-model"),
        (["export", "p.jsonl"], "is a file"),
    ],
)
def test_bad_input_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], told: str) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "p.jsonl", [row(1)])
    result = CliRunner().invoke(main, ["distill", *arguments])
    assert result.exit_code in {1, 2}
    assert told in result.output
    assert "Traceback" not in result.output
