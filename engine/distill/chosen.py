"""How well a draft in training does on the answers that choose the weights. Called by the trainer."""

from __future__ import annotations

import torch
from torch.nn import functional

from engine.distill.learners import Learner
from engine.distill.lessons import Lessons

JUDGE_DEPTH = 4
"""Draft length at which acceptance is told while training."""
_JUDGED = 6
"""Answers of each task by which weights are chosen."""


@torch.inference_mode()
def held_out(draft: Learner, lessons: Lessons, places: torch.Tensor) -> dict[str, float]:
    """Tokens per round at k = 4 by task, and over `all`, were each position of the greedy answers a round's start."""
    emitted: dict[str, list[float]] = {}
    for item in lessons.items:
        if item.entry.temperature > 0 or len(emitted.get(item.entry.task, ())) >= _JUDGED:
            continue
        batch = lessons.one(item, places)
        said = batch.said.to(draft.vocab.device)
        chain: torch.Tensor | None = None
        total = 1.0
        for number, logits in enumerate(draft.steps(batch, JUDGE_DEPTH)):
            hit = logits.argmax(-1) == said
            chain = hit if chain is None else functional.pad(chain[:, :-1], (1, 0)) & hit
            first = max(0, item.entry.prompt - 1) - batch.start + number
            total += float(chain[:, first:].float().mean()) if chain.shape[1] > first else 0.0
        emitted.setdefault(item.entry.task, []).append(total)
    means = {task: sum(found) / len(found) for task, found in sorted(emitted.items())}
    means["all"] = sum(means.values()) / max(1, len(means))
    return means
