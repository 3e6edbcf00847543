"""Measures step costs while the engine is idle: plain and verify steps in turn, on rows of its own. Called by the core.

One call takes one pair of steps, so that a request that arrives meanwhile waits for no more than that.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from engine.attention import RowInput
from engine.control import Controller
from engine.costs import CostModel, context_edge
from engine.kv_cache import KVRow
from engine.messages import Speculation
from engine.model_runner import ModelRunner
from engine.prefix_cache import KVMemory
from engine.sampler import Draft, Sampler, SamplerState
from engine.sequence import GenerateRequest, SamplingParams, Sequence
from engine.spec_decode.proposals import Proposals

BATCHES = (1, 2, 4, 8, 16, 32)
KS = (1, 2, 3, 4, 5, 8)
CONTEXTS = (96, 640)
BAND_CONTEXTS = {context_edge(tokens): tokens for tokens in CONTEXTS}
"""Lower edge of a context band → tokens of context at which it is measured."""
MIXED_KS = (1, 2, 4)
"""Draft lengths of steps in which half the rows draft."""
REPEATS = 4
LARGE = 8
"""Beyond this batch only the shortest context is measured."""
_NAME = "\0profile"


@dataclass(slots=True, frozen=True)
class Point:
    """One kind of round to measure."""

    batch: int
    context: int
    k: int
    drafting: int | None = None
    """Rows that draft, spread over the batch, where the others verify one token each; None: all of them do."""

    @property
    def lengths(self) -> list[int]:
        """Draft tokens of each row."""
        drafting = self.batch if self.drafting is None else self.drafting
        return [self.k if at * drafting % self.batch < drafting else 0 for at in range(self.batch)]


class Profiler:
    """Walks over its points once, a pair of steps at a time."""

    def __init__(self, runner: ModelRunner, memory: KVMemory, proposals: Proposals, costs: CostModel) -> None:
        self._runner = runner
        self._memory = memory
        self._proposals = proposals
        self._costs = costs
        self._sampler = Sampler()
        self._steps: Iterator[None] | None = None

    def step(self, *, max_batch: int, max_k: int, max_len: int) -> bool:
        """Measure one pair of steps; False once everything has been measured."""
        if self._costs.profiled:
            return False
        if self._steps is None:
            self._steps = self._walk(
                [point for point in _points(max_batch, max_k) if point.context + point.k < max_len]
            )
        try:
            next(self._steps)
        except StopIteration:
            self._costs.profiled = True
            return False
        return True

    def measure(self, points: list[Point]) -> None:
        """Measure these points now, whatever has been measured before."""
        for _ in self._walk(points):
            pass

    def _walk(self, points: list[Point]) -> Iterator[None]:
        for point in points:
            for _ in range(REPEATS):
                rows = self._memory.borrow(point.batch, point.context + point.k + 1)
                if rows is None:  # more than the KV budget holds
                    break
                try:
                    self._pair(rows, point)
                finally:
                    self._memory.give_back(rows)
                yield
            for method in self._proposals.methods if point.drafting is None else ():
                self._draft(method, point)
                yield

    def _pair(self, rows: list[KVRow], point: Point) -> None:
        seconds = self._round(rows, point.context, [0] * point.batch)
        self._costs.observe_verify(batch=point.batch, context=point.context, k=0, seconds=seconds)
        seconds = self._round(rows, point.context, point.lengths)
        if point.drafting is None:
            self._costs.observe_verify(batch=point.batch, context=point.context, k=point.k, seconds=seconds)
        else:
            drafted = sum(point.lengths)
            self._costs.observe_mixed(batch=point.batch, context=point.context, drafted=drafted, seconds=seconds)

    def _round(self, rows: list[KVRow], context: int, lengths: list[int]) -> float:
        """Time one verify pass with its sampling and roll-back."""
        state = SamplerState(SamplingParams(temperature=0.0), (), 0)
        started = time.perf_counter()
        for row in rows:
            row.length = context
        logits = self._runner.forward(
            [RowInput(row, [3] * (k + 1), k + 1) for row, k in zip(rows, lengths, strict=True)]
        )
        self._sampler.verify(logits, [(state, Draft([3] * k)) for k in lengths])
        for row in rows:
            row.truncate(context)
        return time.perf_counter() - started

    def _draft(self, method: str, point: Point) -> None:
        """Time a method's draft phase on texts that repeat themselves, so that lookups find something."""
        wants = [(_sequence(f"{_NAME}{at}", method, point), _greedy(), point.k) for at in range(point.batch)]
        self._proposals.take_for_read(method, [sequence for sequence, _, _ in wants])
        for repeat in range(REPEATS + 1):
            started = time.perf_counter()
            drafts = self._proposals.propose(wants)
            seconds = time.perf_counter() - started
            if repeat and all(len(draft.tokens) == point.k for draft in drafts):  # the first call builds the indices
                self._costs.observe_draft(
                    batch=point.batch, context=point.context, k=point.k, method=method, seconds=seconds
                )
        for sequence, _, _ in wants:
            self._proposals.release(sequence)


def _points(max_batch: int, max_k: int) -> Iterable[Point]:
    for batch in BATCHES:
        for context in CONTEXTS:
            if batch <= max_batch and (batch <= LARGE or context == CONTEXTS[0]):
                for k in KS:
                    if k <= max_k:
                        yield Point(batch, context, k)
                yield from mixed_points(batch, context, max_k)


def mixed_points(batch: int, context: int, max_k: int) -> list[Point]:
    """Return the steps to measure in which some rows draft and others do not: a single one, and half of them."""
    if batch < 2:
        return []
    halves = [Point(batch, context, k, batch // 2) for k in MIXED_KS if k <= max_k]
    return [Point(batch, context, min(2, max_k), 1), *halves] if batch > 2 else halves


def _greedy() -> SamplerState:
    return SamplerState(SamplingParams(temperature=0.0), (), 0)


def _sequence(name: str, method: str, point: Point) -> Sequence:
    tokens = [3 + at % 7 for at in range(point.context)]
    request = GenerateRequest(name, tokens, SamplingParams(temperature=0.0), Speculation(method, point.k))
    return Sequence(request, Controller(point.k, None), 0.0, list(tokens), len(tokens))
