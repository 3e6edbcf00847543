"""What each kind of signal adds to the task classifier: held-out macro-F1 with one left out, or alone.

`python -m benchmarks.classify_ablation [--json]`: three folds by family over `classifier_data/`, without noisy copies
but in the last row (needs scikit-learn; some minutes).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from cli.training.data import Example, folds_of, load_examples
from cli.training.evaluate import f1_scores
from cli.training.fit import Options, features_of, fit, logits_of, matrix_of, varied
from gateway.classify.artefact import DEFAULT, load_artefact
from gateway.classify.features import CUES, Features
from gateway.classify.signals import FLAGS, NUMBERS, SCRIPTS

ROOT = Path(__file__).parent.parent
FOLDS = 3
CUE_PART = slice(0, 3 * len(CUES))
NUMBER_PART = slice(CUE_PART.stop, CUE_PART.stop + FLAGS + NUMBERS + len(SCRIPTS))
PAIR_PART = slice(NUMBER_PART.stop, None)
Mask = Callable[[Features], Features]


def _without(*parts: slice, hashed: bool = True) -> Mask:
    def mask(features: Features) -> Features:
        dense = features.dense.copy()
        for part in parts:
            dense[part] = 0
        scales = features.scales if hashed else np.zeros_like(features.scales)
        return dataclasses.replace(features, dense=dense, scales=scales)

    return mask


VARIANTS: dict[str, tuple[Mask, Options]] = {
    "all signals": (_without(), Options(noise=0, joins=0)),
    "without the text model's words and pairs": (_without(hashed=False), Options(noise=0, joins=0)),
    "without cue words": (_without(CUE_PART, PAIR_PART), Options(noise=0, joins=0)),
    "without structure": (_without(NUMBER_PART, PAIR_PART), Options(noise=0, joins=0)),
    "without pairs": (_without(PAIR_PART), Options(noise=0, joins=0)),
    "words and pairs alone": (_without(CUE_PART, NUMBER_PART, PAIR_PART), Options(noise=0, joins=0)),
    "cue words alone": (_without(NUMBER_PART, PAIR_PART, hashed=False), Options(noise=0, joins=0)),
    "structure alone": (_without(CUE_PART, PAIR_PART, hashed=False), Options(noise=0, joins=0)),
    "all, trained with noisy and joined copies": (_without(), Options()),
}


def held_out(examples: list[Example], tasks: tuple[str, ...], mask: Mask, options: Options) -> dict[str, Any]:
    """Return held-out macro-F1 and the F1 of each task for one variant."""
    base = load_artefact(DEFAULT)
    labels = np.array([tasks.index(example.task) for example in examples])
    folds = np.array(folds_of(examples, FOLDS, options.seed))
    copies = varied(examples, options)
    source = np.array([index for index, _ in copies])
    featurizer = base.featurizer()
    features = [mask(found) for found in features_of(featurizer, [body for _, body in copies])]
    matrix = matrix_of(features, featurizer.offsets[-1], options)
    guess = np.zeros(len(examples), dtype=np.int64)
    for fold in range(FOLDS):
        chosen = np.flatnonzero(folds[source] != fold)
        weights = fit(matrix[chosen], labels[source[chosen]], options, len(tasks))
        held = np.flatnonzero(folds == fold)
        guess[held] = logits_of(weights, [features[i] for i in held]).argmax(axis=1)
    scores = f1_scores(labels, guess, len(tasks))
    return {
        "macro_f1": round(float(scores.mean()), 4),
        "f1": dict(zip(tasks, scores.round(4).tolist(), strict=True)),
    }


def main() -> None:
    """Measure every variant and print a table, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    tasks = load_artefact(DEFAULT).header.taxonomy.names
    examples = load_examples(ROOT / "classifier_data", tasks)
    results = {}
    for name, (mask, choice) in VARIANTS.items():
        results[name] = held_out(examples, tasks, mask, choice)
        print(f"{name:<45}{results[name]['macro_f1']:.3f}", file=sys.stderr if options.json else sys.stdout, flush=True)
    if options.json:
        print(json.dumps({"prompts": len(examples), "variants": results}))


if __name__ == "__main__":
    main()
