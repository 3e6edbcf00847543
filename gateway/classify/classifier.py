"""The classifier: declared task, then signals that settle it, then the text model (called for each request)."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gateway.classify.artefact import DEFAULT, Artefact, load_artefact
from gateway.classify.features import CUES, DENSE, Features, Featurizer
from gateway.classify.prompt import Prompt, read_prompt
from gateway.classify.signals import Structure, structure_of
from gateway.classify.taxonomy import Taxonomy
from gateway.types import Classification

FORMAT_CONFIDENCE: Final = 0.98
TOOLS_CONFIDENCE: Final = 0.95


class Classifier:
    """Sorts requests into the tasks of one artefact. Holds no state between requests; safe to share between threads."""

    def __init__(self, artefact: Artefact) -> None:
        self.header = artefact.header
        self.hash = artefact.hash
        self._names = artefact.header.taxonomy.names
        self._featurizer = Featurizer(artefact.chars, artefact.cue_table, artefact.header.bits)
        self._hashed = np.ascontiguousarray(artefact.hashed, dtype=np.float32)  # `take` copies what lies otherwise
        self._dense = np.ascontiguousarray(artefact.dense)
        self._with_bias = np.vstack((artefact.dense, artefact.bias), dtype=np.float32)
        self._bias = artefact.bias
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

    def probabilities(self, features: Features) -> npt.NDArray[np.float64]:
        """Return the calibrated probability of each task, in the taxonomy's order."""
        logits = features.scales @ self._hashed[features.rows] + features.dense @ self._dense + self._bias
        scaled = (logits - logits.max()).astype(np.float64) / self._temperature
        exps = np.exp(scaled)
        result: npt.NDArray[np.float64] = exps / exps.sum()
        return result

    def features(self, prompt: Prompt) -> Features:
        """Compute the model's inputs for `prompt` (training uses this very code)."""
        return self._featurizer.compute(prompt, structure_of(prompt))

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
        rows, scales, places, values, cues = self._featurizer.inputs(prompt, shape)
        logits = scales @ self._hashed.take(rows, axis=0)
        logits += np.array([*values, 1.0], dtype=np.float32) @ self._with_bias.take([*places, DENSE], axis=0)
        scores: list[float] = logits.tolist()
        highest = max(scores)
        total = sum([math.exp((score - highest) / self._temperature) for score in scores])
        found = sorted([(-count, place) for place, count in cues.items()])
        signals["cues"] = [CUES[place] for _, place in found[:3]]
        return self._names[scores.index(highest)], round(1.0 / total, 4)


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
