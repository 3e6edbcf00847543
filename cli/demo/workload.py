"""The demo's prompts: eight tasks, six prompts each, written for this project. Called by `cli.demo.command`."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

import msgspec


class Prompt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One request of the workload; `task` is what a person would call it, the gateway is not told."""

    id: str
    task: str
    messages: list[dict[str, Any]]
    temperature: float = 0.0
    seed: int | None = None
    response_format: dict[str, Any] | None = None

    def body(self, model: str, max_tokens: int) -> dict[str, Any]:
        """Return the chat completion request for this prompt, streamed with usage."""
        body: dict[str, Any] = {
            "model": model,
            "messages": self.messages,
            "max_tokens": max_tokens,
            "temperature": self.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.seed is not None:
            body["seed"] = self.seed
        if self.response_format is not None:
            body["response_format"] = self.response_format
        return body


@cache
def load_prompts() -> tuple[Prompt, ...]:
    """Return all prompts in file order."""
    text = resources.files("cli.demo").joinpath("prompts.jsonl").read_text(encoding="utf-8")
    return tuple(msgspec.json.decode(line, type=Prompt) for line in text.splitlines() if line.strip())


def interleave(prompts: tuple[Prompt, ...], per_task: int) -> list[Prompt]:
    """Return the first `per_task` prompts of every task, in turns: a run cut short has seen all tasks alike."""
    by_task: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        by_task.setdefault(prompt.task, []).append(prompt)
    columns = [rows[:per_task] for rows in by_task.values()]
    return [column[turn] for turn in range(per_task) for column in columns if turn < len(column)]
