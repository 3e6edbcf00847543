"""The classifier: declared task, then signals that settle it, then the text model (called for each request)."""

from __future__ import annotations

import math
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from gateway.classify.artefact import DEFAULT, Artefact, load_artefact
from gateway.classify.features import (
    AFTER_SCRIPTS,
    ALL,
    CUES,
    DENSE_PAIRS,
    IN_BEFORE,
    IN_SYSTEM,
    ONES,
    PAIRED,
    ROOTS,
    SUMMED,
    TURN,
    Floats,
    Inputs,
    Read,
)
from gateway.classify.memory import Known, Memory
from gateway.classify.prompt import Prompt, read_prompt
from gateway.classify.signals import FLAGS, Structure, facts_key
from gateway.classify.taxonomy import Taxonomy
from gateway.classify.window import TOGETHER, Window, window_of
from gateway.types import Classification

FORMAT_CONFIDENCE: Final = 0.98
TOOLS_CONFIDENCE: Final = 0.95


@dataclass(slots=True)
class _Asked:
    """A request while it is classified."""

    window: Window
    read: Read | None
    """None where the window is known."""
    key: Hashable
    known: Known | None
    signals: dict[str, Any]
    task: str | None
    confidence: float
    source: str

    def take(self, known: Known, threshold: float, fallback: str) -> None:
        """Take what the text says, where it is sure enough."""
        self.signals["cues"] = known.cues
        self.task, self.confidence = known.task, known.confidence
        if known.confidence < threshold or not self.window.turn.strip():
            self.signals["text_task"] = known.task
            self.task, self.source = fallback, "fallback"


class Classifier:
    """Sorts requests into the tasks of one artefact. Holds no state between requests; safe to share between threads."""

    def __init__(self, artefact: Artefact) -> None:
        self.header = artefact.header
        self.hash = artefact.hash
        self._names = artefact.header.taxonomy.names
        self._featurizer = artefact.featurizer()
        self._step, self._temperature = artefact.header.step, artefact.header.temperature
        tasks, dense = len(self._names), artefact.dense
        weights = artefact.weights.reshape(len(artefact.weights), -1, tasks)
        self._context = {region: weights[:, region].astype(np.float32) for region in (IN_SYSTEM, IN_BEFORE)}
        self._turn = _picked(tasks)
        self._summed = np.ascontiguousarray(dense[:SUMMED])
        self._scripts = dense[SUMMED:AFTER_SCRIPTS] + artefact.bias
        self._pairs = _squared(dense[AFTER_SCRIPTS:])

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
        return self.classify_all([(body, declared)], threshold=threshold, fallback=fallback)[0]

    def classify_all(
        self,
        requests: Sequence[tuple[Mapping[str, Any], str | None]],
        *,
        threshold: float = 0.0,
        fallback: str | None = None,
        memory: Memory | None = None,
    ) -> list[Classification]:
        """Classify bodies, each with the task that its header declares: as `classify` does it, one by one.

        What is read together costs less: most of the time goes into starting array operations. Windows that `memory`
        knows, as it was handed in earlier calls, are not read again.
        """
        began = time.perf_counter_ns()
        asked = [self._ask(body, declared, memory) for body, declared in requests]
        left = [(one, one.read) for one in asked if one.task is None and one.read is not None]
        for start in range(0, len(left), TOGETHER):
            some = left[start : start + TOGETHER]
            for (one, _), known in zip(some, self._judge([read for _, read in some]), strict=True):
                one.known = known
                if memory is not None:
                    memory.keep(one.key, known)
        for one in asked:
            if one.task is None and one.known is not None:
                one.take(one.known, threshold, fallback or self.taxonomy.fallback)
        micros = (time.perf_counter_ns() - began) / 1000 / max(1, len(asked))
        return [Classification(one.task, one.confidence, one.source, one.signals, micros) for one in asked]  # type: ignore[arg-type]  # source is one of the literals, and each has a task by now

    def probabilities(self, prompt: Prompt) -> list[float]:
        """Return the calibrated probability of each task, in the taxonomy's order, whatever is declared or settled."""
        read = Read.of(prompt, window_of(prompt))
        return self._chances(self._logits(self._featurizer.inputs((read,)))[0])

    def _ask(self, body: Mapping[str, Any], declared: str | None, memory: Memory | None) -> _Asked:
        """Read a body as far as it settles its task, or as it is known."""
        prompt = read_prompt(body)
        window = window_of(prompt)
        key = (self.hash, window, facts_key(prompt))
        known = None if memory is None else memory.get(key)
        if known is None:
            read = Read.of(prompt, window)
            shape = read.shape
        else:
            read, shape = None, known.shape
        signals = _signals(prompt, shape)
        settled = self._settle(prompt, declared or prompt.declared, signals)
        return _Asked(window, read, key, known, signals, *settled)

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

    def _judge(self, read: Sequence[Read]) -> list[Known]:
        """Return each one's likeliest task and its calibrated probability: what `probabilities` says."""
        inputs = self._featurizer.inputs(read)
        cues, scores = inputs.sums[:, ALL, : len(CUES)].tolist(), self._logits(inputs)
        judged = []
        for each, counts, logits in zip(read, cues, scores, strict=True):
            found = [place for place, count in enumerate(counts) if count]
            found.sort(key=counts.__getitem__, reverse=True)
            chances = self._chances(logits)
            highest = max(chances)
            task = self._names[chances.index(highest)]
            judged.append(Known(each.shape, task, round(highest, 4), [CUES[place] for place in found[:3]]))
        return judged

    def _chances(self, scores: Sequence[float]) -> list[float]:
        highest = max(scores)
        powers = [math.exp((score - highest) / self._temperature) for score in scores]
        total = sum(powers)
        return [power / total for power in powers]

    def _logits(self, inputs: Inputs) -> list[list[float]]:
        """Return each task's score for each request; it does not depend on what is read together with the request."""
        many = len(inputs.scripts)
        scores: Floats = inputs.sums.reshape(many, -1).dot(self._turn)  # of whole numbers, so exact
        scores *= np.array([self._step * ROOTS[len(found[ALL])] for found in inputs.regions], np.float32)[:, None]
        scores += self._scripts.take(inputs.scripts, axis=0)
        scores += _times(inputs.summed, self._summed)
        scores += _times(inputs.paired, _times(inputs.paired, self._pairs).reshape(many, PAIRED, -1))
        for at, regions in enumerate(inputs.regions):
            for region, weights in self._context.items():
                if len(found := regions[region]):
                    sums = ONES[: len(found)].dot(weights.take(found, axis=0))
                    scores[at] += sums * (self._step * ROOTS[len(found)])
        result: list[list[float]] = scores.tolist()
        return result


def _times(rows: Floats, weights: Floats) -> Floats:
    """Return each row times the weights, one row at a time: sums of several at once may be rounded in other ways."""
    product: Floats
    if len(rows) == 1:
        product = rows.dot(weights.reshape(rows.shape[1], -1))  # the same with less ado
    else:
        product = np.matmul(rows[:, None, :], weights)[:, 0]
    return product


def _picked(tasks: int) -> Floats:
    """Return what the last turn's sums are multiplied by, so that each region's own weights count for each task."""
    picked = np.zeros((TURN, len(CUES) + TURN * tasks, tasks), dtype=np.float32)
    for region in range(TURN):
        first = len(CUES) + region * tasks
        picked[region, first : first + tasks] = np.eye(tasks)
    return picked.reshape(-1, tasks)


def _squared(pairs: Floats) -> Floats:
    """Return the weights of pairs by their first, then by their second."""
    squared = np.zeros((PAIRED, PAIRED, pairs.shape[1]), dtype=np.float32)
    one, two = (np.array(DENSE_PAIRS).T + FLAGS) % PAIRED  # flags come before cues
    squared[one, two] = pairs
    return squared.reshape(PAIRED, -1)


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
    if prompt.system:
        signals["system"] = True
    if prompt.tools:
        signals["tools"] = len(prompt.tools)
    if prompt.tool_choice:
        signals["tool_choice"] = prompt.tool_choice
    if prompt.result:
        signals["tool_result"] = True
    if prompt.response_format:
        signals["response_format"] = prompt.response_format
    if prompt.prediction:
        signals["prediction"] = True
    if prompt.images:
        signals["images"] = True
    return signals
