"""Fits the linear model with scikit-learn and turns it into an artefact (called by `cli.classifier`)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cli.training.data import Example
from cli.training.noise import joined, noisy, swapped
from gateway.classify.features import DENSE, Features, Featurizer, Read
from gateway.classify.prompt import read_prompt
from gateway.classify.window import window_of
from gateway.errors import ArtefactError

Array = npt.NDArray[Any]
JOINED = frozenset(("code", "math", "creative", "chat"))
"""Tasks whose prompts grow long without pasting a text."""
JOIN_CHARS = 800


@dataclass(frozen=True)
class Options:
    """What a training run may vary."""

    strength: float = 1.0
    """Inverse regularisation of the text model's weights (scikit-learn's C)."""
    dense_scale: float = 0.25
    """Scale of the cue and structural inputs against the text model's: larger means less regularised."""
    min_families: int = 5
    """Families in which a word or a pair of words must occur to be known (see `vocabulary`)."""
    noise: int = 4
    """Copies of each prompt with typos, lost accents or changed case."""
    joins: int = 1
    """Copies of each short prompt of the tasks in `JOINED` with another one of its family appended."""
    swaps: int = 2
    """Copies of each prompt that pastes a document, with another one or a part of one."""
    balance: float = 1.0
    """Each row counts by one over this power of how many its task has: rare tasks are not given up for common ones."""
    seed: int = 0


@dataclass(frozen=True)
class Weights:
    """A fitted model: (rows, tasks) each."""

    text: Array
    dense: Array
    bias: Array


def features_of(featurizer: Featurizer, bodies: Sequence[dict[str, Any]]) -> list[Features]:
    """Compute the model's inputs by the code that serves requests."""
    found = []
    for body in bodies:
        prompt = read_prompt(body)
        found.append(featurizer.compute(Read.of(prompt, window_of(prompt))))
    return found


def matrix_of(features: Sequence[Features], width: int, options: Options) -> Any:  # noqa: ANN401 (scipy is untyped)
    """Return the sparse design matrix: the text model's `width` inputs first, dense inputs last."""
    from scipy import sparse

    indptr = np.cumsum([0, *(len(f.rows) for f in features)])
    data = np.concatenate([f.scales for f in features])
    text = sparse.csr_matrix((data, np.concatenate([f.rows for f in features]), indptr), shape=(len(features), width))
    text.sum_duplicates()
    dense = sparse.csr_matrix(np.stack([f.dense for f in features]) * options.dense_scale)
    return sparse.hstack((text, dense), format="csr")


def varied(examples: Sequence[Example], options: Options) -> list[tuple[int, dict[str, Any]]]:
    """Return (index of its example, body) for each example and its copies: damaged, joined with a like one, swapped."""
    rng = random.Random(options.seed)  # noqa: S311 (typos, not secrets)
    pairs = [(index, example.body) for index, example in enumerate(examples)]
    for _ in range(options.noise):
        pairs += [(index, noisy(example.body, rng)) for index, example in enumerate(examples)]
    alike: dict[tuple[str, str, str], list[int]] = {}
    for index, example in enumerate(examples):
        alike.setdefault((example.task, example.language, example.family), []).append(index)
    for _ in range(options.joins):
        for index, example in enumerate(examples):
            other = examples[rng.choice(alike[example.task, example.language, example.family])]
            if example.task in JOINED and len(str(example.body)) < JOIN_CHARS:
                pairs.append((index, joined(example.body, other.body)))
    for _ in range(options.swaps):
        pairs += [(index, swapped(example, rng)) for index, example in enumerate(examples) if example.texts]
    return pairs


def fit(matrix: Any, labels: Array, options: Options, tasks: int) -> Weights:  # noqa: ANN401
    """Fit multinomial logistic regression. Raises ArtefactError without scikit-learn or with a task that has no row."""
    try:
        from sklearn.linear_model import LogisticRegression
    except ImportError as error:
        raise ArtefactError("training needs scikit-learn: pip install 'breakeven[training]'") from error
    if len(set(labels)) != tasks:
        raise ArtefactError("every task of the taxonomy needs labelled rows")
    width = matrix.shape[1] - DENSE
    common = np.flatnonzero(np.bincount(matrix.indices, minlength=matrix.shape[1]) > 0)
    model = LogisticRegression(C=options.strength, max_iter=300, tol=1e-3)
    weights = np.bincount(labels)[labels] ** -options.balance
    model.fit(matrix[:, common], labels, sample_weight=weights / weights.mean())
    found = model.coef_ if tasks > 2 else np.concatenate((-model.coef_ / 2, model.coef_ / 2))
    coefficients = np.zeros((tasks, matrix.shape[1]))
    coefficients[:, common] = found
    bias = model.intercept_ if tasks > 2 else np.concatenate((-model.intercept_ / 2, model.intercept_ / 2))
    table = coefficients.T
    return Weights(table[:width], table[width:] * options.dense_scale, bias)


def logits_of(weights: Weights, features: Sequence[Features]) -> Array:
    """Return (examples, tasks) scores as the classifier computes them."""
    return np.stack([f.scales @ weights.text[f.rows] + f.dense @ weights.dense + weights.bias for f in features])


def softmax(logits: Array, temperature: float) -> Array:
    """Return probabilities at `temperature`."""
    scaled = (logits - logits.max(axis=1, keepdims=True)) / temperature
    exps = np.exp(scaled)
    result: Array = exps / exps.sum(axis=1, keepdims=True)
    return result


def fit_temperature(logits: Array, labels: Array) -> float:
    """Return the temperature of least negative log likelihood on held-out rows, by golden search over a fixed grid."""
    grid = np.geomspace(0.2, 5.0, 161)
    losses = [-np.log(np.maximum(softmax(logits, t)[np.arange(len(labels)), labels], 1e-12)).mean() for t in grid]
    return round(float(grid[int(np.argmin(losses))]), 4)
