"""Pairs the workload: every prompt on both paths, in alternating order, level by level. Called by `command`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from cli.demo.client import Client, DemoError, Sample
from cli.demo.workload import Prompt

PATHS = ("plain", "speculative")
_GIVE_UP = 8
"""Failures in a row after which nothing more is sent."""
_SETTLE_S = 2.5
"""The gateway's statistics are at most a second old, and records are written in batches."""


@dataclass(slots=True)
class Pair:
    """The same prompt on both paths at the same concurrency."""

    plain: Sample
    speculative: Sample


@dataclass(slots=True)
class Decided:
    """What the gateway itself does with a task now."""

    path: str
    arm: str
    reason: str


@dataclass(slots=True)
class Outcome:
    """Everything that the demo saw."""

    model: str
    pairs: list[Pair] = field(default_factory=list)
    decisions: dict[str, Decided] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    planned: int = 0
    """Pairs planned; fewer were run where the time was up."""
    seconds: float = 0.0


class Progress(Protocol):
    """Told of each request that has ended."""

    def __call__(self, done: int, total: int, label: str, /) -> None:
        """Show that `done` of `total` requests have ended."""


class Runner:
    """Runs the workload against one gateway within a time budget in seconds."""

    def __init__(
        self,
        client: Client,
        model: str,
        *,
        max_tokens: int,
        budget_s: float,
        arm: str | None = None,
        progress: Progress = lambda _done, _total, _label: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._client = client
        self._max_tokens = max_tokens
        self._budget_s = budget_s
        self._arm = arm
        self._progress = progress
        self._clock = clock
        self._done = 0
        self._failed_in_row = 0
        self.outcome = Outcome(model)

    async def run(self, prompts: Sequence[Prompt], concurrencies: Sequence[int]) -> Outcome:
        """Run all prompts at each concurrency, then ask for the gateway's own decisions."""
        start = self._clock()
        total = 2 * len(prompts) * len(concurrencies)
        self.outcome.planned = len(prompts) * len(concurrencies)
        for turn, concurrency in enumerate(concurrencies):
            weights = [1 / c**0.5 for c in concurrencies[: turn + 1]]
            everything = sum(1 / c**0.5 for c in concurrencies)
            deadline = start + self._budget_s * sum(weights) / everything
            await self._level(prompts, concurrency, deadline, total)
        self._progress(total, total, "asking for decisions")
        await asyncio.sleep(_SETTLE_S if self.outcome.pairs else 0)
        await self._ask(prompts)
        self.outcome.seconds = self._clock() - start
        return self.outcome

    async def _level(self, prompts: Sequence[Prompt], concurrency: int, deadline: float, total: int) -> None:
        """Run groups of `concurrency` prompts, each group on one path and then on the other."""
        for number, at in enumerate(range(0, len(prompts), concurrency)):
            if self._clock() > deadline or self._failed_in_row >= _GIVE_UP:
                return
            group = prompts[at : at + concurrency]
            order = PATHS if number % 2 == 0 else PATHS[::-1]
            samples: dict[str, list[Sample | None]] = {}
            for path in order:
                label = f"concurrency {concurrency}, {path}"
                samples[path] = await asyncio.gather(*(self._one(p, path, concurrency, total, label) for p in group))
            for plain, speculative in zip(samples["plain"], samples["speculative"], strict=True):
                if plain is not None and speculative is not None:
                    self.outcome.pairs.append(Pair(plain, speculative))

    async def _one(self, prompt: Prompt, path: str, concurrency: int, total: int, label: str) -> Sample | None:
        """Send one request on the wished path; None where it failed (the error is kept)."""
        wish = {"x-breakeven-path": path}
        if self._arm and path == "speculative":
            wish["x-breakeven-arm"] = self._arm
        try:
            sample = await self._client.send(
                prompt.body(self.outcome.model, self._max_tokens),
                prompt=prompt.id,
                task=prompt.task,
                concurrency=concurrency,
                wish=wish,
            )
        except DemoError as error:
            self.outcome.errors.append(f"{prompt.id} ({path}): {error}")
            self._failed_in_row += 1
            return None
        finally:
            self._done += 1
            self._progress(self._done, total, label)
        self._failed_in_row = 0
        if sample.path != path:
            self.outcome.errors.append(
                f"{prompt.id}: not allowed on the {path} path, answered by {sample.arm} ({sample.reason})"
            )
            return None
        return sample

    async def _ask(self, prompts: Sequence[Prompt]) -> None:
        """Send an ordinary request per task; a probe or the holdout shows no decision, so try another then."""
        for task in dict.fromkeys(p.task for p in prompts):
            for prompt in [p for p in prompts if p.task == task][:3]:
                try:
                    sample = await self._client.send(prompt.body(self.outcome.model, 4), prompt=prompt.id, task=task)
                except DemoError as error:
                    self.outcome.errors.append(f"{prompt.id} (auto): {error}")
                    self._failed_in_row += 1
                    if self._failed_in_row >= _GIVE_UP:
                        return
                    continue
                self.outcome.decisions[task] = Decided(sample.path, sample.arm, sample.reason)
                if not any(word in sample.reason.lower() for word in ("probe", "holdout")):
                    break
