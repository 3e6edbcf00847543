"""The user's taxonomy, and the artefact file: what is refused and how it is said."""

from pathlib import Path

import numpy as np
import pytest

from gateway.classify import Classifier
from gateway.classify.artefact import DEFAULT, MAX_BYTES, load_artefact, save_artefact
from gateway.classify.taxonomy import load_taxonomy, parse_taxonomy
from gateway.errors import ArtefactError
from gateway.types import DEFAULT_TASKS

ROOT = Path(__file__).parents[4]


def test_shipped_artefact_has_the_eight_tasks_is_small_and_hashes(tmp_path):
    artefact = load_artefact(DEFAULT)
    assert artefact.header.taxonomy.names == DEFAULT_TASKS
    assert DEFAULT.stat().st_size <= MAX_BYTES
    assert len(artefact.hash) == 64
    assert save_artefact(artefact, tmp_path / "again.npz") == artefact.hash


def test_shipped_artefact_was_trained_with_the_taxonomy_in_the_repository():
    assert load_taxonomy(ROOT / "classifier_data" / "taxonomy.yaml") == load_artefact(DEFAULT).header.taxonomy


def test_damaged_and_foreign_files_are_refused(tmp_path):
    damaged = tmp_path / "damaged.npz"
    data = bytearray(DEFAULT.read_bytes())
    data[len(data) // 2] ^= 0xFF
    damaged.write_bytes(data)
    with pytest.raises(ArtefactError, match=r"hash mismatch|not a classifier artefact"):
        load_artefact(damaged)
    text = tmp_path / "text.npz"
    text.write_text("hello")
    with pytest.raises(ArtefactError, match="not a classifier artefact"):
        load_artefact(text)
    with pytest.raises(ArtefactError, match="not a classifier artefact"):
        load_artefact(tmp_path / "missing.npz")


def test_pickles_are_never_read(tmp_path):
    path = tmp_path / "pickle.npz"
    np.savez(path, header=np.array([{"a": 1}], dtype=object), hash=np.array("x"))
    with pytest.raises(ArtefactError):
        load_artefact(path)


def test_wrong_shapes_name_the_array(tmp_path):
    artefact = load_artefact(DEFAULT)
    artefact.bias = artefact.bias[:-1]
    save_artefact(artefact, tmp_path / "short.npz")
    with pytest.raises(ArtefactError, match="bias: expected shape"):
        load_artefact(tmp_path / "short.npz")


def test_too_large_is_not_written(tmp_path):
    artefact = load_artefact(DEFAULT)
    artefact.weights = np.zeros((1 << 20, 8), dtype=np.int16)
    with pytest.raises(ArtefactError, match="use fewer tasks or prompts"):
        save_artefact(artefact, tmp_path / "large.npz")


def test_weights_whose_sums_could_overflow_are_refused(tmp_path):
    artefact = load_artefact(DEFAULT)
    artefact.dense = artefact.dense * np.float32(20)
    with pytest.raises(ArtefactError, match=r"steep\.npz: weights: too large to be summed"):
        save_artefact(artefact, tmp_path / "steep.npz")


def test_rows_out_of_order_are_refused(tmp_path):
    artefact = load_artefact(DEFAULT)
    artefact.rows = artefact.rows[::-1]
    save_artefact(artefact, tmp_path / "order.npz")
    with pytest.raises(ArtefactError, match="rows: expected increasing numbers below"):
        load_artefact(tmp_path / "order.npz")


def test_unknown_declared_task_is_not_obeyed_but_shown():
    found = Classifier.load().classify({"prompt": "2 + 2"}, declared="no_such_task")
    assert found.source == "text"
    assert found.signals["declared_unknown"] == "no_such_task"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("tasks: [a, b]", "tasks: expected a mapping"),
        ("tasks: {a: x}", "expected 2 to 64 tasks, found 1"),
        ("tasks: {a: x, B: y}", "'B': expected a name of lower-case"),
        ("tasks: {a: x, b: y}\nfallback: c", "fallback: 'c' is none of the tasks"),
        ("tasks: {a: x, b: y}\nsignals: {tools: c}", "signals.tools: 'c' is none of the tasks"),
        ("tasks: {a: x, b: y}\nsignals: {rain: a}", "expected one of response_format, tools"),
        ("tasks: {a: x, b: {descripton: y}}", "tasks.b: expected a description"),
        ("tasks: {a: x, b: {examples: 3}}", "tasks.b: Expected `array`"),
        ("tasks: {a: x, b: y}\ncolour: red", "colour: unknown key"),
        ("tasks: {a: x, b: y", "not YAML"),
        ("[1, 2]", "tasks: expected a mapping"),
    ],
)
def test_taxonomy_errors_name_the_field(text, complaint):
    with pytest.raises(ArtefactError, match=r"T\.yaml: .*") as caught:
        parse_taxonomy(text, "T.yaml")
    assert complaint in str(caught.value)


def test_a_user_s_taxonomy():
    taxonomy = parse_taxonomy(
        "fallback: other\nsignals: {tools: agent}\n"
        "tasks:\n  agent: Calls tools.\n  other: {description: Rest, examples: [hi]}",
        "T.yaml",
    )
    assert taxonomy.names == ("agent", "other")
    assert taxonomy.tasks[1].examples == ("hi",)
