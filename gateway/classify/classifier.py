"""The classifier: declared task, then signals that settle it, then the text model (called for each request)."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from itertools import combinations
from operator import mul
from pathlib import Path
from typing import Any, Final

import numpy as np

from gateway.classify.artefact import DEFAULT, ONE, Artefact, load_artefact
from gateway.classify.features import CUES, DENSE_PAIRS, LIMIT, UNIT, Inputs
from gateway.classify.lanes import pack, unpack
from gateway.classify.prompt import Prompt, read_prompt
from gateway.classify.signals import Structure, structure_of
from gateway.classify.taxonomy import Taxonomy
from gateway.types import Classification

FORMAT_CONFIDENCE: Final = 0.98
TOOLS_CONFIDENCE: Final = 0.95
_SCALES: Final = (0, *[round(1024 / math.sqrt(count)) for count in range(1, LIMIT)])
"""What a sum of so many weights is multiplied by, in units of 1 / 1024."""


class Classifier:
    """Sorts requests into the tasks of one artefact. Holds no state between requests; safe to share between threads."""

    def __init__(self, artefact: Artefact) -> None:
        self.header = artefact.header
        self.hash = artefact.hash
        self._names = artefact.header.taxonomy.names
        self._featurizer = artefact.featurizer()
        self._tables = _tables(artefact, self._featurizer.offsets)
        dense = pack(np.rint(artefact.dense.astype(np.float64) * (ONE // UNIT)))
        self._dense = dense
        self._pairs = {pair: dense[place] for pair, place in DENSE_PAIRS.items()}
        self._bias = pack(np.rint(artefact.bias.astype(np.float64) * ONE)[None])[0]
        self._temperature = artefact.header.temperature

    @classmethod
    def load(cls, artefact: Path | None = None) -> Classifier:
        """Load an artefact, by default the shipped one. Raises ArtefactError."""
        return cls(load_artefact(artefact or DEFAULT))

    @property
    def taxonomy(self) -> Taxonomy:
        """The tasks that this classifier knows."""
        return self.header.taxonomy

    def classify(
        self,
        body: Mapping[str, Any],
        *,
        declared: str | None = None,
        threshold: float = 0.0,
        fallback: str | None = None,
    ) -> Classification:
        """Classify a chat or completions body. Never raises, whatever the body holds.

        Args:
            body: the client's JSON object.
            declared: the task that a header declares; wins if the taxonomy has it.
            threshold: below this confidence the task is `fallback` (a policy's `classifier.threshold`).
            fallback: a policy's `classifier.fallback_task`; by default the taxonomy's.
        """
        began = time.perf_counter_ns()
        prompt = read_prompt(body)
        shape = structure_of(prompt)
        signals = _signals(prompt, shape)
        task, confidence, source = self._settle(prompt, declared or prompt.declared, signals)
        if task is None:
            task, confidence = self._read(prompt, shape, signals)
            source = "text"
        if source == "text" and (confidence < threshold or not prompt.user.strip()):
            signals["text_task"] = task
            task, source = fallback or self.taxonomy.fallback, "fallback"
        micros = (time.perf_counter_ns() - began) / 1000
        return Classification(task, confidence, source, signals, micros)  # type: ignore[arg-type]  # source is one of the literals

    def probabilities(self, prompt: Prompt) -> list[float]:
        """Return the calibrated probability of each task, in the taxonomy's order, whatever is declared or settled."""
        return self._chances(self._featurizer.inputs(prompt, structure_of(prompt)))

    def _settle(self, prompt: Prompt, declared: str | None, signals: dict[str, Any]) -> tuple[str | None, float, str]:
        if declared:
            name = declared.strip().lower()
            if name in self._names:
                return name, 1.0, "declared"
            signals["declared_unknown"] = declared[:64]
        settles = self.taxonomy.signals
        if prompt.response_format and "response_format" in settles:
            return settles["response_format"], FORMAT_CONFIDENCE, "signal"
        if prompt.tools and prompt.tool_choice != "none" and not prompt.result and "tools" in settles:
            return settles["tools"], TOOLS_CONFIDENCE, "signal"
        return None, 0.0, "text"

    def _read(self, prompt: Prompt, shape: Structure, signals: dict[str, Any]) -> tuple[str, float]:
        """Return the likeliest task and its calibrated probability: what `probabilities` says, for one request."""
        inputs = self._featurizer.inputs(prompt, shape)
        found = sorted([(-count, place) for place, count in inputs.cues.items()])
        signals["cues"] = [CUES[place] for _, place in found[:3]]
        chances = self._chances(inputs)
        highest = max(chances)
        return self._names[chances.index(highest)], round(highest, 4)

    def _chances(self, inputs: Inputs) -> list[float]:
        scores = self._logits(inputs)
        highest = max(scores)
        powers = [math.exp((score - highest) / self._temperature) for score in scores]
        total = sum(powers)
        return [power / total for power in powers]

    def _logits(self, inputs: Inputs) -> list[float]:
        """Return each task's score: every sum here adds whole vectors, one lane per task."""
        tables = self._tables
        total = self._bias + sum(map(mul, map(self._dense.__getitem__, inputs.places), inputs.values))
        whole = sum(map(self._dense.__getitem__, inputs.whole))
        whole += sum(map(self._pairs.__getitem__, combinations(inputs.present, 2)))
        total += whole * UNIT
        for table, entries in inputs.regions:
            total += sum(map(tables[table].__getitem__, entries)) * _SCALES[len(entries) - entries.count(0)]
        return [lane / ONE for lane in unpack(total, len(self._names))]


def _tables(artefact: Artefact, offsets: list[int]) -> list[list[int]]:
    """Return each table's vectors by the number of their entry; most are zero."""
    vectors, tables = pack(artefact.weights), []
    bounds = np.searchsorted(artefact.rows, offsets).tolist()
    for first, until, begin, end in zip(offsets, offsets[1:], bounds, bounds[1:], strict=False):
        table = [0] * (until - first)
        for entry, vector in zip((artefact.rows[begin:end] - first).tolist(), vectors[begin:end], strict=True):
            table[entry] = vector
        tables.append(table)
    return tables


def _signals(prompt: Prompt, shape: Structure) -> dict[str, Any]:
    signals: dict[str, Any] = {
        "chars": shape.chars,
        "turns": prompt.turns,
        "script": shape.script,
        "fences": shape.fences,
        "code_marks": shape.code_marks,
        "math_marks": shape.math_marks,
        "copyable": round(shape.copyable, 3),
    }
    optional = {
        "system": bool(prompt.system),
        "tools": len(prompt.tools),
        "tool_choice": prompt.tool_choice,
        "tool_result": bool(prompt.result),
        "response_format": prompt.response_format,
        "prediction": bool(prompt.prediction),
        "images": prompt.images,
    }
    signals.update((name, value) for name, value in optional.items() if value)
    return signals
