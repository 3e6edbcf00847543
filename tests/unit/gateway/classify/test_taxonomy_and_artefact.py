"""The user's taxonomy, and the artefact file: what is refused and how it is said."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from gateway.classify import Classifier
from gateway.classify.artefact import DEFAULT, MAX_BYTES, load_artefact, save_artefact
from gateway.classify.taxonomy import load_taxonomy, parse_taxonomy
from gateway.classify.vocabulary import Vocabulary
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


@pytest.mark.parametrize("header", [{"format": 2}, {"format": 3}])
def test_files_of_an_older_version_are_told_from_foreign_ones(tmp_path, header):
    known = msgspec.to_builtins(load_artefact(DEFAULT).header)
    del known["step"]
    raw = np.frombuffer(msgspec.json.encode({**known, **header}), dtype=np.uint8)
    np.savez(tmp_path / "old.npz", header=raw, hash=np.array("x"))
    with pytest.raises(ArtefactError, match="another version; run `breakeven classifier train` again"):
        load_artefact(tmp_path / "old.npz")


def test_pickles_are_never_read(tmp_path):
    path = tmp_path / "pickle.npz"
    np.savez(path, header=np.array([{"a": 1}], dtype=object), hash=np.array("x"))
    with pytest.raises(ArtefactError):
        load_artefact(path)


def test_too_large_is_not_written(tmp_path):
    artefact = load_artefact(DEFAULT)
    artefact.weights = np.zeros((1 << 20, 8), dtype=np.int8)
    with pytest.raises(ArtefactError, match="use fewer tasks or prompts"):
        save_artefact(artefact, tmp_path / "large.npz")


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("weights", np.zeros((4, 40), dtype=np.int8), r"weights: expected int8 \(32768, 40\), found int8 \(4, 40\)"),
        ("dense", np.zeros(4, dtype=np.float32), "dense: expected float32"),
        ("bias", np.zeros(8), r"bias: expected float32 \(8,\), found float64 \(8,\)"),
        ("cues", np.zeros(3, dtype=np.uint8), "cues: expected uint8"),
        ("folds", np.zeros(3, dtype=np.uint16), "folds: expected uint16"),
    ],
)
def test_arrays_of_another_shape_or_kind_are_named(tmp_path, name, value, complaint):
    artefact = load_artefact(DEFAULT)
    setattr(artefact, name, value)
    save_artefact(artefact, tmp_path / "odd.npz")
    with pytest.raises(ArtefactError, match=rf"odd\.npz: {complaint}"):
        load_artefact(tmp_path / "odd.npz")


def test_a_vocabulary_of_an_odd_size_is_refused(tmp_path):
    artefact = load_artefact(DEFAULT)
    artefact.vocabulary = Vocabulary(artefact.vocabulary.keys, artefact.vocabulary.shifts[:-1])
    save_artefact(artefact, tmp_path / "odd.npz")
    with pytest.raises(ArtefactError, match="keys, shifts: expected powers of two"):
        load_artefact(tmp_path / "odd.npz")


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
