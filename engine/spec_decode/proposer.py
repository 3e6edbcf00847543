"""The protocol behind which every drafter stands. Called by the core once per step, for all sequences of one method."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from engine.sampler import Draft, SamplerState
from engine.sequence import Sequence as Seq

Observer = Callable[[Sequence[tuple[Seq, torch.Tensor]]], None]
"""Told after each of the target's passes: by sequence, the hidden states of its new tokens [tokens, taps · width].

The tokens are the last ones below the length of the sequence's KV, drafts included that may be rejected yet.
"""


class Proposer(Protocol):
    """Guesses what follows a sequence's tokens. Keeps its own state by request."""

    def propose(self, wants: Sequence[tuple[Seq, SamplerState, int]]) -> list[Draft]:
        """Return a draft of at most k tokens for each `(sequence, state, k)`; empty where there is no guess."""

    def release(self, request_id: str) -> None:
        """Forget a request that has ended. Unknown ids are ignored."""
