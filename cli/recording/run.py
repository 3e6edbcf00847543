"""Prompts → answers → drafts at every position → trace lines. Called by `cli.record_traces`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from cli.recording.generate import Answer, Generator
from cli.recording.prompts import Prompt
from cli.recording.replay import Replayer
from cli.recording.store import Origin, TraceFile, TraceLine
from engine.config import ConfigError, EngineConfig
from engine.errors import RequestRejected
from engine.models.load import load_models

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Settings:
    """How to record."""

    batch: int
    """Requests decoded, and replayed, together."""
    max_tokens: int
    methods: tuple[str, ...]
    """Drafters to ask; empty: all there are."""
    max_draft: int
    temperature: float
    seed: int
    messages: bool
    """Whether the trace keeps the prompts' messages."""


class Recording:
    """One run over a list of prompts. Raises EngineError where a model cannot be used."""

    def __init__(self, config: EngineConfig, settings: Settings) -> None:
        torch.set_num_threads(config.num_threads)
        self._settings = settings
        self._target, self._draft = load_models(config)
        self._generator = Generator(
            self._target,
            batch=settings.batch,
            max_tokens=settings.max_tokens,
            temperature=settings.temperature,
            seed=settings.seed,
        )
        self._replayer = Replayer(self._target, self._draft, max_draft=settings.max_draft, batch=settings.batch)

        offered = self._replayer.methods
        unknown = [method for method in settings.methods if method not in offered]
        if unknown:
            raise ConfigError(f"method: expected one of {', '.join(offered)}, got {unknown[0]!r}")
        self.methods = sorted(set(settings.methods)) or offered
        """Drafters that are asked."""

    @property
    def origin(self) -> Origin:
        """How this run makes its traces."""
        draft = None if self._draft is None else self._draft.name
        return Origin(self._target.name, self._settings.max_draft, draft, self._settings.temperature)

    def run(self, prompts: Sequence[Prompt], out: TraceFile, *, advance: Callable[[int], None], fault: Report) -> None:
        """Record what `out` does not hold yet; `fault` is told of each prompt that cannot be recorded."""
        work = []
        for prompt in prompts:
            try:
                if prompt.id not in out.done:
                    work.append((prompt, self._generator.request(prompt)))
                    continue
            except RequestRejected as error:
                fault(f"{prompt.where}: {error}")
            advance(1)
        complete: list[Answer] = []
        for answer in self._generator.answers(work):
            complete.append(answer)
            if len(complete) == self._settings.batch:
                self._write(complete, out, fault)
                advance(len(complete))
                complete = []
        self._write(complete, out, fault)
        advance(len(complete))

    def _write(self, answers: Sequence[Answer], out: TraceFile, fault: Report) -> None:
        """Replay the drafters over some answers and append their lines."""
        for answer in answers:
            if not answer.tokens:
                fault(f"{answer.prompt.where}: left out, the model ended its answer at once")
        told = [answer for answer in answers if answer.tokens]
        found = {method: self._replayer.replay(method, told) for method in self.methods}
        for at, answer in enumerate(told):
            prompt = answer.prompt
            out.append(
                TraceLine(
                    id=prompt.id,
                    task=prompt.task,
                    classified_task=prompt.classified_task,
                    prompt_tokens=len(answer.request.prompt_ids),
                    emitted={method: lists[at].emitted for method, lists in found.items()},
                    drafted={method: lists[at].drafted for method, lists in found.items()},
                    origin=self.origin,
                    messages=prompt.body.get("messages") if self._settings.messages else None,
                )
            )
