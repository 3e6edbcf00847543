"""The full held-out evaluation of the training recipe; writes benchmarks/results/classify.json."""

import json
import math
from pathlib import Path

import msgspec
import numpy as np
import pytest

from cli.training.data import folds_of, load_examples
from cli.training.evaluate import calibration_error, evaluate, wilson
from gateway.classify.artefact import DEFAULT, load_artefact
from gateway.classify.lexicon import cue_entries, load_lexicon
from gateway.classify.tokens import Tokenizer, build_folds

ROOT = Path(__file__).parents[4]
DATA = ROOT / "classifier_data"


@pytest.fixture(scope="module")
def examples():
    return load_examples(DATA, load_artefact(DEFAULT).header.taxonomy.names)


def test_the_data_has_variety_and_no_doubles(examples):
    tasks = load_artefact(DEFAULT).header.taxonomy.names
    for task in tasks:
        of_task = [example for example in examples if example.task == task]
        assert len(of_task) >= 300, task
        assert {"en", "de", "es", "fr", "hi", "nl", "sk", "zh"} <= {example.language for example in of_task}, task
        assert len({example.family for example in of_task}) >= 20, task
    assert len({json.dumps(example.body, sort_keys=True) for example in examples}) == len(examples)
    assert len({example.id for example in examples}) == len(examples)


def test_no_family_stands_on_both_sides_of_a_split(examples):
    folds = folds_of(examples, 5, 0)
    of_family = {}
    for example, fold in zip(examples, folds, strict=True):
        of_family.setdefault(example.family, set()).add(fold)
    assert all(len(found) == 1 for found in of_family.values())
    sizes = np.bincount(folds)
    assert sizes.max() < 1.2 * sizes.min()


def test_metrics_by_hand():
    result = evaluate([0, 0, 1, 1], [0, 1, 1, 1], [0.9, 0.6, 0.8, 0.7], ["a", "b", "c"])
    assert result.confusion == [[1, 1, 0], [0, 2, 0], [0, 0, 0]]
    assert result.accuracy == 0.75
    assert result.scores[0].recall == 0.5
    assert result.scores[1].precision == pytest.approx(2 / 3, abs=1e-4)
    assert result.macro_f1 == pytest.approx((2 / 3 + 4 / 5) / 2, abs=1e-4)
    assert result.scores[2].precision is None
    low, high = wilson(8, 10)
    assert (low, high) == (pytest.approx(0.4902, abs=1e-3), pytest.approx(0.9433, abs=1e-3))
    assert calibration_error(np.array([0.95, 0.95, 0.55]), np.array([1, 0, 1])) == pytest.approx(
        (2 * math.fabs(0.95 - 0.5) + math.fabs(0.55 - 1)) / 3
    )


@pytest.mark.verify
def test_held_out_families_reach_the_figures(examples):
    from cli.training.fit import Options
    from cli.training.run import Tables, train

    base = load_artefact(DEFAULT)
    folds = build_folds()
    artefact, result = train(
        examples,
        base.header.taxonomy,
        Tables(folds, cue_entries(load_lexicon(DATA / "lexicon.yaml"), Tokenizer(folds))),
        Options(),
        version=base.header.version,
        say=print,
    )
    report = {
        "prompts": len(examples),
        "families": len({example.family for example in examples}),
        "artefact": {"version": base.header.version, "hash": base.hash, "bytes": DEFAULT.stat().st_size},
        "languages": artefact.header.training["languages"],
        "held_out": msgspec.to_builtins(result),
    }
    (ROOT / "benchmarks/results/classify.json").write_text(json.dumps(report, indent=1) + "\n")
    assert result.macro_f1 >= 0.85
    assert all(score.f1 >= 0.75 for score in result.scores)
    assert result.calibration_error <= 0.05
    drift = np.abs(artefact.dense - base.dense).mean()
    assert np.array_equal(artefact.vocabulary.keys, base.vocabulary.keys)
    assert drift < 0.01, "the shipped artefact was not trained on the data in the repository"
