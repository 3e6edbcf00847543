"""Attention of a draft that is unrolled at every position of a text at once. Called by the head's training pass."""

from __future__ import annotations

import torch
from torch.nn import functional


def rotate(x: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Rotary embedding of [..., positions, dim]; `turn` holds cosines and signed sines."""
    cos, signed_sin = turn
    return x * cos + x.roll(x.shape[-1] // 2, dims=-1) * signed_sin


def attend(query: torch.Tensor, past: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """Attention of the last of `past`'s steps at its last `count` positions; query [rows, heads, count, dim].

    A draft of s steps ending at t has read the true states up to t − s + 1 and its own of one step each after that.
    """
    count, dim = query.shape[-2:]
    key, value = past[0]
    length = key.shape[-2]
    later = len(past) - 1
    hidden = torch.ones(count, length, dtype=torch.bool, device=query.device).triu(1 - later + length - count)
    scores = (query @ key.transpose(-1, -2)).masked_fill(hidden, -torch.inf)
    own = [(_shift(k, later - 1 - at), _shift(v, later - 1 - at)) for at, (k, v) in enumerate(past[1:])]
    extra = [(query * k).sum(-1, keepdim=True) for k, _ in own]
    weights = torch.softmax(torch.cat((scores, *extra), dim=-1) * dim**-0.5, dim=-1)
    out = weights[..., :length] @ value
    for at, (_, v) in enumerate(own):
        out = out + weights[..., length + at, None] * v
    return out


def _shift(x: torch.Tensor, by: int) -> torch.Tensor:
    """Move [rows, heads, length, dim] `by` positions later."""
    by = min(by, x.shape[-2])
    return functional.pad(x[..., : x.shape[-2] - by, :], (0, 0, by, 0)) if by else x
