"""`breakeven classifier`: training on a user's own taxonomy, evaluation, inspection."""

import json

import pytest
from click.testing import CliRunner

from cli.classifier import classifier
from gateway.classify import Classifier

TAXONOMY = """
fallback: smalltalk
signals: {tools: booking}
tasks:
  booking: Reserving a table.
  complaint: Something went wrong.
  smalltalk: All else.
"""
WORDS = {
    "booking": [
        "book a table for {n}",
        "reserve {n} seats tonight",
        "can we get a table for {n} at eight",
        "a table, {n} people",
    ],
    "complaint": [
        "my order {n} is broken",
        "item {n} arrived late",
        "this is the {n}th time it fails",
        "refund order {n} now",
    ],
    "smalltalk": ["hello number {n}", "how are you today {n}", "nice weather {n}", "good morning {n}"],
}


def run(*args):
    return CliRunner().invoke(classifier, [str(arg) for arg in args])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    pytest.importorskip("sklearn")
    folder = tmp_path_factory.mktemp("classifier")
    rows = [
        {"task": task, "family": f"{task}-{f}", "turns": [text.format(n=n)]}
        for task, texts in WORDS.items()
        for f, text in enumerate(texts)
        for n in range(2, 8)
    ]
    (folder / "labels.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "tasks.yaml").write_text(TAXONOMY)
    result = run(
        *("train", "--data", folder / "labels.jsonl", "--taxonomy", folder / "tasks.yaml"),
        *("--out", folder / "own.npz", "--version", "own-1", "--json"),
    )
    assert result.exit_code == 0, result.output
    return folder, json.loads(result.stdout)


def test_training_reports_held_out_figures_and_writes_a_usable_artefact(trained):
    folder, report = trained
    assert report["tasks"] == ["booking", "complaint", "smalltalk"]
    assert report["rows"] == sum(map(sum, report["confusion"])) == 72
    model = Classifier.load(folder / "own.npz")
    assert model.header.version == "own-1"
    assert model.classify({"prompt": "reserve 5 seats tonight"}).task == "booking"
    assert model.classify({"prompt": "hello"}, declared="complaint").source == "declared"
    assert model.classify({"prompt": "hello", "tools": [{}]}).task == "booking"


def test_eval_on_labels_with_unlabelled_rows_left_out(trained):
    folder, _ = trained
    mixed = folder / "mixed.jsonl"
    mixed.write_text('{"task": "booking", "turns": ["book a table for 4"]}\n{"task": null, "turns": ["hm"]}\n')
    result = run("eval", "--data", mixed, "--artefact", folder / "own.npz", "--json")
    report = json.loads(result.stdout)
    assert (report["rows"], report["unlabelled"], report["accuracy"]) == (1, 1, 1.0)
    assert "macro-F1 1.000" in run("eval", "--data", mixed, "--artefact", folder / "own.npz").stdout


def test_inspect(trained):
    folder, _ = trained
    report = json.loads(run("inspect", "--artefact", folder / "own.npz", "--prompt", "book a table", "--json").stdout)
    assert report["version"] == "own-1"
    assert report["verdict"]["task"] == "booking"
    assert sum(report["probabilities"].values()) == pytest.approx(1, abs=1e-3)
    assert "structured" in run("inspect").stdout


def test_errors_name_file_and_line(trained):
    folder, _ = trained
    bad = folder / "bad.jsonl"
    bad.write_text('{"task": "booking", "turns": ["x"]}\n{"task": "nonsense", "turns": ["x"]}\n')
    result = run("eval", "--data", bad, "--artefact", folder / "own.npz")
    assert result.exit_code == 1
    assert "bad.jsonl:2: task: expected one of booking, complaint, smalltalk, found 'nonsense'" in result.stderr
    bad.write_text('{"turns": ["x"]}\n')
    assert "no labelled rows" in run("eval", "--data", bad, "--artefact", folder / "own.npz").stderr
    few = run("train", "--data", bad, "--taxonomy", folder / "tasks.yaml", "--out", folder / "x.npz", "--version", "1")
    assert few.exit_code == 1
    assert "task: expected one of" in few.stderr
