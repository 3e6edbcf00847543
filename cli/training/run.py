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
from gateway.classify.artefact import Artefact, Header
from gateway.classify.features import CueTable, Featurizer
from gateway.classify.taxonomy import Taxonomy
from gateway.classify.tokens import CharTables
from gateway.errors import ArtefactError

FOLDS = 5


@dataclass(frozen=True)
class Tables:
    """What is not trained: character folding and the lexicon's hash table."""

    chars: CharTables
    cues: CueTable


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
    features = features_of(Featurizer(tables.chars, tables.cues, options.bits), [body for _, body in copies])
    matrix = matrix_of(features, options)
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
    header = Header(version, taxonomy, options.bits, temperature, training=training)
    arrays = (final.hashed.astype(np.float16), final.dense.astype(np.float32), final.bias.astype(np.float32))
    return Artefact(header, *arrays, tables.chars, tables.cues), result


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
