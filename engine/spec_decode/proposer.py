"""The protocol behind which every drafter stands. Called by the core once per step, for all sequences of one method."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from engine.sampler import Draft, SamplerState
from engine.sequence import Sequence as Seq


class Proposer(Protocol):
    """Guesses what follows a sequence's tokens. Keeps its own state by request."""

    def propose(self, wants: Sequence[tuple[Seq, SamplerState, int]]) -> list[Draft]:
        """Return a draft of at most k tokens for each `(sequence, state, k)`; empty where there is no guess."""

    def release(self, request_id: str) -> None:
        """Forget a request that has ended. Unknown ids are ignored."""
