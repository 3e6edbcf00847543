"""What each kind of signal adds to classification, and what classification adds to routing.

`python -m benchmarks classify_ablation` (needs scikit-learn; some minutes). The first half is held-out macro-F1, folds
by family over `classifier_data/`, with one kind of signal left out, or alone; and once with whole prompt files held
out, as prompts of another source would be. To save time each prompt has one noisy copy, not four as when the shipped
artefact is trained. The second half is the time that the live decision needs on acceptance traces, relative to no
speculation, when it is told each request's true task, the one that a classifier gives that has seen nothing of the
prompt's family, or one task for all.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks._routing_settings import costs, tasks
from cli.simulation.costs import CostModel, read_costs
from cli.simulation.made_up import make_traces
from cli.simulation.replay import build_table
from cli.simulation.run import Plan, simulate
from cli.simulation.traces import Trace, read_traces
from cli.training.data import Example, folds_of, load_examples
from cli.training.evaluate import Array, f1_scores
from cli.training.fit import Options, features_of, fit, logits_of, matrix_of, varied
from gateway.classify import Classifier
from gateway.classify.artefact import DEFAULT, load_artefact
from gateway.classify.features import AFTER_SCRIPTS, COUNTED, REGIONS, Features
from gateway.classify.rows import Row

ROOT = Path(__file__).parent.parent
FOLDS, SEEDS = 3, 3
FILE_FOLDS = 9
LENGTHS = (2, 4, 8)
ACCEPTANCES = (0.85, 0.3, 0.5, 0.65, 0.2, 0.75, 0.4, 0.1)
CUE_PART, FACT_PART, PAIR_PART = slice(COUNTED), slice(COUNTED, AFTER_SCRIPTS), slice(AFTER_SCRIPTS, None)
SHOWN = ("routed", "routed_in_flight", "best_static", "task_oracle")
Mask = Callable[[Features], Features]


def _without(*parts: slice, text: bool = True) -> Mask:
    def mask(features: Features) -> Features:
        dense = features.dense.copy()
        for part in parts:
            dense[part] = 0
        scales = features.scales if text else np.zeros_like(features.scales)
        return dataclasses.replace(features, dense=dense, scales=scales)

    return mask


VARIANTS: dict[str, Mask] = {
    "all signals": _without(),
    "without the text model's words and pairs": _without(text=False),
    "without cue words": _without(CUE_PART, PAIR_PART),
    "without structure": _without(FACT_PART, PAIR_PART),
    "without pairs of cues and flags": _without(PAIR_PART),
    "words and pairs of words alone": _without(CUE_PART, FACT_PART, PAIR_PART),
    "cue words alone": _without(FACT_PART, PAIR_PART, text=False),
    "structure alone": _without(CUE_PART, PAIR_PART, text=False),
}
UNVARIED = "all, trained without noisy and joined copies"


class Study:
    """The training data's inputs, computed once for all variants."""

    def __init__(self, options: Options) -> None:
        base = load_artefact(DEFAULT)
        self.options, self.names = options, base.header.taxonomy.names
        self.examples: list[Example] = load_examples(ROOT / "classifier_data", self.names)
        self.labels = np.array([self.names.index(example.task) for example in self.examples])
        self.folds = np.array(folds_of(self.examples, FOLDS, options.seed))
        self.files = np.array([example.id.rpartition("-")[0] for example in self.examples])
        copies = varied(self.examples, options)
        self.source = np.array([index for index, _ in copies])
        featurizer = base.featurizer()
        self.width = REGIONS * featurizer.places
        self.features = features_of(featurizer, [body for _, body in copies])

    def guesses(self, mask: Mask, *, copies: bool = True, folds: Array | None = None) -> Array:
        """Return each example's task by number, as predicted by a model that has not seen its fold (of families)."""
        folds = self.folds if folds is None else folds
        features = [mask(found) for found in self.features]
        matrix = matrix_of(features, self.width, self.options)
        usable = np.ones(len(features), dtype=bool) if copies else np.arange(len(features)) < len(self.examples)
        guess = np.zeros(len(self.examples), dtype=np.int64)
        for fold in np.unique(folds):
            chosen = np.flatnonzero((folds[self.source] != fold) & usable)
            weights = fit(matrix[chosen], self.labels[self.source[chosen]], self.options, len(self.names))
            held = np.flatnonzero(folds == fold)
            guess[held] = logits_of(weights, [features[i] for i in held]).argmax(axis=1)
        return guess

    def by_file(self) -> dict[str, Any]:
        """Return macro-F1 and the share of each prompt file that is right, where the whole file is held out."""
        whole = [
            dataclasses.replace(example, family=file) for example, file in zip(self.examples, self.files, strict=True)
        ]
        guess = self.guesses(_without(), folds=np.array(folds_of(whole, FILE_FOLDS, self.options.seed)))
        right = {
            file: float((guess == self.labels)[self.files == file].mean().round(4)) for file in np.unique(self.files)
        }
        mean = round(sum(right.values()) / len(right), 4)
        return {"macro_f1": self.figures(guess)["macro_f1"], "mean_right": mean, "right": right}

    def figures(self, guess: Array) -> dict[str, Any]:
        """Return macro-F1 and the F1 of each task."""
        scores = f1_scores(self.labels, guess, len(self.names))
        f1 = dict(zip(self.names, scores.round(4).tolist(), strict=True))
        return {"macro_f1": round(float(scores.mean()), 4), "f1": f1}


def recorded(study: Study, guess: Array) -> tuple[list[Trace], list[str]]:
    """Return the recorded traces, and each one's task as classified unseen: held out, or by the shipped classifier."""
    held_out = {example.id: study.names[task] for example, task in zip(study.examples, guess.tolist(), strict=True)}
    bodies = {}
    for line in (ROOT / "benchmarks/traces/prompts.jsonl").read_bytes().splitlines():
        row = msgspec.json.decode(line, type=Row)
        bodies[str(row.id)] = row.body()
    classifier = Classifier.load()
    traces = read_traces(ROOT / "benchmarks/traces/smollm2.jsonl", "ngram", 1024)
    return traces, [held_out.get(trace.id) or classifier.classify(bodies[trace.id]).task for trace in traces]


def made_up(study: Study, guess: Array) -> tuple[list[Trace], list[str]]:
    """Return made-up traces of eight tasks that differ much, and tasks confused as often as the held-out ones are."""
    specs = tasks(*ACCEPTANCES, spread=0.6, wander=0.4)
    names = [spec.name for spec in specs]
    rng = np.random.default_rng(0)
    traces = make_traces(list(specs), 300, 71)
    of_task = {name: guess[study.labels == place] for place, name in enumerate(names)}
    return traces, [names[int(rng.choice(of_task[trace.task]))] for trace in traces]


def routed(traces: Sequence[Trace], told: Sequence[str], batch: int, cost: CostModel) -> dict[str, dict[str, float]]:
    """Return the routed time, relative to plain decoding, by what the controller is told; and oracles beside it."""
    found = {}
    for name, seen in {
        "true": [trace.task for trace in traces],
        "classified": list(told),
        "none": ["any"] * len(traces),
    }.items():
        shown = [msgspec.structs.replace(trace, seen_task=task) for trace, task in zip(traces, seen, strict=True)]
        plan = Plan(build_table(shown, cost, LENGTHS), "ngram", 300, SEEDS)
        relative = simulate(plan, workers=1)["relative_time"]
        found[name] = {key: round(relative[key]["mean"], 4) for key in SHOWN}
        print(f"batch {batch}, told {name}: {found[name]}", file=sys.stderr, flush=True)
    return found


def main() -> None:
    """Measure every variant and print a table, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    out = sys.stderr if options.json else sys.stdout
    study = Study(Options(noise=1))
    guess = study.guesses(_without())
    variants = {"all signals": study.figures(guess)}
    for name, mask in list(VARIANTS.items())[1:]:
        variants[name] = study.figures(study.guesses(mask))
    variants[UNVARIED] = study.figures(study.guesses(_without(), copies=False))
    for name, figures in variants.items():
        print(f"{name:<45}{figures['macro_f1']:.3f}", file=out, flush=True)
    by_file = study.by_file()
    print(f"{'all, whole files held out':<45}{by_file['macro_f1']:.3f}", file=out, flush=True)
    routing: dict[str, Any] = {}
    for kind, (traces, told) in {"recorded": recorded(study, guess), "made up": made_up(study, guess)}.items():
        right = sum(trace.task == task for trace, task in zip(traces, told, strict=True))
        routing[kind] = {"requests": len(traces), "classified_right": right}
        for batch in (1, 16):
            file = ROOT / "benchmarks/traces/costs.yaml"
            cost = read_costs(file, "ngram", batch) if kind == "recorded" else costs(8 * batch)
            routing[kind][f"batch {cost.batch}"] = routed(traces, told, cost.batch, cost)
    print(json.dumps({"prompts": len(study.examples), "variants": variants, "by_file": by_file, "routing": routing}))


if __name__ == "__main__":
    main()
