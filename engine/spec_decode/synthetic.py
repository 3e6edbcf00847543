"""Acceptance by a given profile instead of by the model, for load tests and GPU runs without real weights.

Every pass really runs and is really timed; only which drafts count as accepted is drawn. The output is not the model's;
a core in this mode says so (`EngineCore.synthetic`), and only `EngineConfig.synthetic_acceptance` turns it on.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from engine.config import ConfigError
from engine.sampler import Draft, Sampler, SamplerState, Verdict
from engine.sequence import Sequence as Seq

ANY_TASK = "*"


class AcceptanceProfile:
    """Acceptance probability by task and draft position, given that all positions before it were accepted."""

    def __init__(self, by_task: dict[str, list[float]]) -> None:
        self._by_task = by_task

    @classmethod
    def load(cls, path: str) -> AcceptanceProfile:
        """Read `{"task": [p1, p2, …], "*": […]}`. Raises ConfigError saying what was expected."""
        try:
            data: Any = json.loads(Path(path).read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"synthetic_acceptance: cannot read {path}: {error}") from error
        if not isinstance(data, dict) or ANY_TASK not in data or not all(map(_is_profile, data.values())):
            raise ConfigError(
                f"synthetic_acceptance: {path}: expected an object of lists of probabilities by task, "
                f"with {ANY_TASK!r} for all other tasks"
            )
        return cls(data)

    def at(self, task: str, position: int) -> float:
        """Return the probability at a position; the last one holds beyond the list."""
        profile = self._by_task.get(task) or self._by_task[ANY_TASK]
        return profile[min(position, len(profile) - 1)]


def _is_profile(values: Any) -> bool:  # noqa: ANN401 - JSON
    return (
        isinstance(values, list)
        and bool(values)
        and all(isinstance(p, int | float) and not isinstance(p, bool) and 0 <= p <= 1 for p in values)
    )


class SyntheticProposer:
    """Proposes k tokens whatever the text, at the cost of writing them down."""

    def propose(self, wants: Sequence[tuple[Seq, SamplerState, int]]) -> list[Draft]:
        """Return the last token k times for every request."""
        return [Draft([sequence.tokens[-1]] * k) for sequence, _, k in wants]

    def release(self, request_id: str) -> None:
        """Nothing is kept."""


class SyntheticSampler(Sampler):
    """Runs the real sampler for its cost, then draws how many drafts were accepted."""

    def __init__(self, profile: AcceptanceProfile) -> None:
        self._profile = profile
        self._rng = random.Random(0)  # noqa: S311 - load tests

    def verify(self, logits: torch.Tensor, rows: Sequence[tuple[SamplerState, Draft]]) -> list[Verdict]:
        """Logits as for the real sampler; the tokens after an accepted draft are the model's own."""
        verdicts = super().verify(logits, rows)
        for (state, draft), verdict in zip(rows, verdicts, strict=True):
            if not draft.tokens or verdict.error is not None:
                continue
            accepted = 0
            while accepted < len(draft.tokens) and self._rng.random() < self._profile.at(state.task, accepted):
                accepted += 1
            verdict.tokens = [*draft.tokens[:accepted], verdict.tokens[-1]]
            verdict.accepted = accepted
            verdict.logprobs = verdict.logprobs[-1:] * len(verdict.tokens)
        return verdicts
