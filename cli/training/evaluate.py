"""Measures a classifier on labelled requests: confusion, scores with intervals, calibration (called by `eval`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Z = 1.959964
"""Two-sided 95 %."""


class Score(msgspec.Struct):
    """One task's figures; intervals are Wilson's for precision and recall, bootstrapped over rows for F1."""

    task: str
    rows: int
    predicted: int
    precision: float | None
    precision_interval: tuple[float, float] | None
    recall: float | None
    recall_interval: tuple[float, float] | None
    f1: float
    f1_interval: tuple[float, float]


class Evaluation(msgspec.Struct):
    """A classifier's figures on a set of labelled requests."""

    rows: int
    unlabelled: int
    accuracy: float
    macro_f1: float
    """Mean over the tasks that have labelled rows."""
    macro_f1_interval: tuple[float, float]
    calibration_error: float
    """Expected calibration error over ten bins of equal width."""
    scores: list[Score]
    tasks: list[str]
    confusion: list[list[int]]
    """Rows are true tasks, columns are predicted ones, both in the order of `tasks`."""


def wilson(hits: int, total: int) -> tuple[float, float] | None:
    """Return Wilson's 95 % interval of a share; None without observations."""
    if total == 0:
        return None
    share = hits / total
    centre = share + Z * Z / (2 * total)
    spread = Z * math.sqrt(share * (1 - share) / total + Z * Z / (4 * total * total))
    scale = 1 + Z * Z / total
    return round((centre - spread) / scale, 4), round((centre + spread) / scale, 4)


def calibration_error(confidence: Array, right: Array, bins: int = 10) -> float:
    """Return the mean gap between confidence and accuracy over bins, weighted by their rows."""
    place = np.minimum((confidence * bins).astype(int), bins - 1)
    total = 0.0
    for number in range(bins):
        inside = place == number
        if inside.any():
            total += inside.mean() * abs(confidence[inside].mean() - right[inside].mean())
    return float(total)


def f1_scores(truth: Array, guess: Array, tasks: int) -> Array:
    """Return each task's F1, 0 where it neither occurs nor is predicted."""
    confusion = np.bincount(truth * tasks + guess, minlength=tasks * tasks).reshape(tasks, tasks)
    both = confusion.sum(0) + confusion.sum(1)
    result: Array = 2 * confusion.diagonal() / np.maximum(both, 1)
    return result


def evaluate(
    truth: Sequence[int],
    guess: Sequence[int],
    confidence: Sequence[float],
    tasks: Sequence[str],
    *,
    unlabelled: int = 0,
) -> Evaluation:
    """Compare predictions with labels (indices into `tasks`)."""
    true, found = np.asarray(truth, dtype=np.int64), np.asarray(guess, dtype=np.int64)
    count = len(tasks)
    confusion = np.bincount(true * count + found, minlength=count * count).reshape(count, count)
    present = confusion.sum(1) > 0
    rng = np.random.default_rng(0)
    picks = rng.integers(0, len(true), (400, len(true)))
    draws = np.stack([f1_scores(true[pick], found[pick], count) for pick in picks])
    low, high = np.quantile(draws, (0.025, 0.975), axis=0)
    macro_low, macro_high = np.quantile(draws[:, present].mean(1), (0.025, 0.975))
    f1 = f1_scores(true, found, count)
    right = true == found
    return Evaluation(
        rows=len(true),
        unlabelled=unlabelled,
        accuracy=round(float(right.mean()), 4),
        macro_f1=round(float(f1[present].mean()), 4),
        macro_f1_interval=(round(float(macro_low), 4), round(float(macro_high), 4)),
        calibration_error=round(calibration_error(np.asarray(confidence), right), 4),
        scores=[_score(tasks, i, confusion, float(f1[i]), (float(low[i]), float(high[i]))) for i in range(count)],
        tasks=list(tasks),
        confusion=confusion.tolist(),
    )


def _score(tasks: Sequence[str], index: int, confusion: Array, f1: float, interval: tuple[float, float]) -> Score:
    hits, rows, predicted = int(confusion[index, index]), int(confusion[index].sum()), int(confusion[:, index].sum())
    return Score(
        task=tasks[index],
        rows=rows,
        predicted=predicted,
        precision=round(hits / predicted, 4) if predicted else None,
        precision_interval=wilson(hits, predicted),
        recall=round(hits / rows, 4) if rows else None,
        recall_interval=wilson(hits, rows),
        f1=round(f1, 4),
        f1_interval=(round(interval[0], 4), round(interval[1], 4)),
    )


def render(result: Evaluation) -> str:
    """Return a table of scores and the confusion matrix, for people."""
    lines = [f"{'task':<16}{'rows':>6}  {'precision':<22}{'recall':<22}{'F1':<22}"]
    for score in result.scores:
        cells = (
            _cell(score.precision, score.precision_interval),
            _cell(score.recall, score.recall_interval),
            _cell(score.f1 if score.rows else None, score.f1_interval),
        )
        lines.append(f"{score.task:<16}{score.rows:>6}  " + "".join(f"{cell:<22}" for cell in cells))
    low, high = result.macro_f1_interval
    skipped = f", {result.unlabelled} without a label left out" if result.unlabelled else ""
    lines += [
        "",
        f"macro-F1 {result.macro_f1:.3f} [{low:.3f}, {high:.3f}], accuracy {result.accuracy:.3f}, "
        f"calibration error {result.calibration_error:.3f}, {result.rows} rows{skipped}",
        "",
        f"{'true / predicted':<17}" + "".join(f"{name[:11]:>12}" for name in result.tasks),
    ]
    for name, row in zip(result.tasks, result.confusion, strict=True):
        lines.append(f"{name:<17}" + "".join(f"{count:>12}" for count in row))
    return "\n".join(lines)


def _cell(value: float | None, interval: tuple[float, float] | None) -> str:
    if value is None or interval is None:
        return "-"
    return f"{value:.3f} [{interval[0]:.3f}, {interval[1]:.3f}]"
