"""One training run: held-out evaluation by family, temperature, final fit, artefact (called by `cli.classifier`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import msgspec
import numpy as np

from cli.training.data import Example, folds_of
from cli.training.evaluate import Array, Evaluation, evaluate
from cli.training.fit import Options, Weights, features_of, fit, fit_temperature, logits_of, matrix_of, softmax, varied
from cli.training.vocabulary import vocabulary_of
from gateway.classify.artefact import Artefact, Header
from gateway.classify.features import REGIONS, Featurizer
from gateway.classify.taxonomy import Taxonomy
from gateway.classify.tokens import Folds, Tokenizer
from gateway.errors import ArtefactError

FOLDS = 5
LARGEST = np.iinfo(np.int8).max


@dataclass(frozen=True)
class Tables:
    """What is not trained: how characters fold, and which words and pairs are cues."""

    folds: Folds
    cues: dict[int, int]
    """Hash → cue class plus one."""


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
    families = [examples[index].family for index in source]
    tokenizer = Tokenizer(tables.folds)
    vocabulary, cues = vocabulary_of(tables.cues, tokenizer, bodies, families, options.min_families)
    featurizer = Featurizer(tokenizer, vocabulary, cues)
    features = features_of(featurizer, bodies)
    matrix = matrix_of(features, REGIONS * featurizer.places, options)
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
        "languages": _by_language(examples, logits.argmax(axis=1) == labels),
        "options": asdict(options),
        "held_out": msgspec.to_builtins(result),
    }
    steps, step = stepped(final, len(names))
    header = Header(version, taxonomy, temperature, step, training=training)
    dense, bias = final.dense.astype(np.float32), final.bias.astype(np.float32)
    return Artefact(header, vocabulary, cues, steps, dense, bias, tables.folds), result


def stepped(weights: Weights, tasks: int) -> tuple[Array, float]:
    """Return the text model's weights by place, as whole numbers of one byte, and what one counts."""
    step = float(np.abs(weights.text).max(initial=1e-6)) / LARGEST
    steps = np.rint(weights.text / step).astype(np.int8).reshape(REGIONS, -1, tasks)
    return np.ascontiguousarray(steps.transpose(1, 0, 2).reshape(steps.shape[1], REGIONS * tasks)), step


def _by_language(examples: Sequence[Example], right: Array) -> dict[str, dict[str, float]]:
    """Return how many prompts each language has, and the share of them that is right held out."""
    found: dict[str, list[bool]] = {}
    for example, hit in zip(examples, right.tolist(), strict=True):
        found.setdefault(example.language, []).append(hit)
    return {
        language: {"prompts": len(hits), "accuracy": round(sum(hits) / len(hits), 3)}
        for language, hits in sorted(found.items())
    }


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
