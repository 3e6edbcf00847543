"""The next draft token of each row from a drafter's logits. Called by the drafters that are models themselves."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.sampler import SamplerState, argmax, draw, warp

Row = tuple[SamplerState, list[int], list[torch.Tensor]]
"""A request's sampler, the drafts before this one, and the distributions that they were drawn from (extended here)."""


def choose(logits: torch.Tensor, rows: Sequence[Row]) -> list[int | None]:
    """Pick each row's next token from logits [rows, target's vocabulary]; None where none of them is allowed.

    Sampled rows draw by the request's own settings and keep the distribution, without which acceptance is not exact.
    """
    best: list[int | None] = [*argmax(logits)]
    for at, (state, before, kept) in enumerate(rows):
        if state.plain:
            continue
        warped = warp(logits[at], state, before)
        if warped.max() == -torch.inf:
            best[at] = None
        elif state.params.temperature <= 0:
            best[at] = int(warped.argmax())
        else:
            probs = torch.softmax(warped, dim=-1)
            best[at] = draw(probs, state.draft)
            kept.append(probs)
    return best
