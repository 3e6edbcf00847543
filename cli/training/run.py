"""One training run: held-out evaluation by family, temperature, final fit, artefact (called by `cli.classifier`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import msgspec
import numpy as np

from cli.training.data import Example, folds_of
from cli.training.evaluate import Array, Evaluation, evaluate
from cli.training.fit import Options, features_of, fit, fit_temperature, logits_of, matrix_of, softmax, varied
from cli.training.vocabulary import vocabulary_of
from gateway.classify.artefact import STEP, Artefact, Header
from gateway.classify.features import Featurizer
from gateway.classify.taxonomy import Taxonomy
from gateway.classify.tokens import Folds, Tokenizer
from gateway.classify.vocabulary import Vocabulary
from gateway.errors import ArtefactError

FOLDS = 5
LARGEST = np.iinfo(np.int16).max
LEAST = 8
"""Rows of smaller weights only (in units of 1 / STEP) are left out: they decide nothing and take time to load."""


@dataclass(frozen=True)
class Tables:
    """What is not trained: how characters fold, and the vocabulary to start with, which holds the cue words."""

    folds: Folds
    cues: Vocabulary


def train(
    examples: Sequence[Example],
    taxonomy: Taxonomy,
    tables: Tables,
    options: Options,
    *,
    version: str,
    say: Callable[[str], None],
) -> tuple[Artefact, Evaluation]:
    """Return the artefact fitted on all examples, and its evaluation on families that each fold left out.

    Raises ArtefactError if a task has too few rows or families to hold any out.
    """
    names = taxonomy.names
    _check(examples, names)
    labels = np.array([names.index(example.task) for example in examples])
    folds = np.array(folds_of(examples, FOLDS, options.seed))
    copies = varied(examples, options)
    source = np.array([index for index, _ in copies])
    say(f"{len(examples)} prompts of {len({e.family for e in examples})} families, {len(copies)} with their variants")
    bodies = [body for _, body in copies]
    vocabulary = vocabulary_of(tables.cues, Tokenizer(tables.folds), bodies, options.min_rows)
    featurizer = Featurizer(Tokenizer(tables.folds), vocabulary)
    features = features_of(featurizer, bodies)
    matrix = matrix_of(features, featurizer.offsets[-1], options)
    logits = np.zeros((len(examples), len(names)))
    for fold in range(FOLDS):
        chosen = np.flatnonzero(folds[source] != fold)
        weights = fit(matrix[chosen], labels[source[chosen]], options, len(names))
        held = np.flatnonzero(folds == fold)
        logits[held] = logits_of(weights, [features[i] for i in held])
        say(f"fold {fold + 1} of {FOLDS}: {len(held)} prompts held out")
    temperature, result = _calibrate(logits, labels, folds, names)
    final = fit(matrix, labels[source], options, len(names))
    training = {
        "prompts": len(examples),
        "families": len({example.family for example in examples}),
        "languages": dict(sorted(Counter(example.language for example in examples).items())),
        "options": asdict(options),
        "held_out": msgspec.to_builtins(result),
    }
    header = Header(version, taxonomy, temperature, training=training)
    steps = np.clip(np.rint(final.text * STEP), -LARGEST, LARGEST).astype(np.int16)
    rows = np.flatnonzero(np.abs(steps).max(axis=1) >= LEAST).astype(np.int32)
    dense, bias = final.dense.astype(np.float32), final.bias.astype(np.float32)
    return Artefact(header, rows, steps[rows], dense, bias, tables.folds, vocabulary), result


def _check(examples: Sequence[Example], names: Sequence[str]) -> None:
    for name in names:
        families = {example.family for example in examples if example.task == name}
        if len(families) < 2:
            raise ArtefactError(
                f"task {name}: {len(families)} families of labelled rows; at least 2 are needed to hold one out"
            )


def _calibrate(logits: Array, labels: Array, folds: Array, names: Sequence[str]) -> tuple[float, Evaluation]:
    """Fit one temperature on all held-out rows; evaluate each fold at a temperature fitted on the other folds."""
    chances = np.zeros_like(logits)
    for fold in range(FOLDS):
        inside = folds == fold
        chances[inside] = softmax(logits[inside], fit_temperature(logits[~inside], labels[~inside]))
    guess = chances.argmax(axis=1)
    result = evaluate(labels.tolist(), guess.tolist(), chances.max(axis=1).tolist(), names)
    return fit_temperature(logits, labels), result
