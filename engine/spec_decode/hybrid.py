"""N-gram where it matches, a model's draft where it does not: each covers what the other cannot. Called by the core."""

from __future__ import annotations

from collections.abc import Sequence

from engine.sampler import Draft, SamplerState
from engine.sequence import Sequence as Seq
from engine.spec_decode.draft_model import DraftModelProposer
from engine.spec_decode.eagle import EagleProposer
from engine.spec_decode.ngram import NgramProposer
from engine.spec_decode.proposer import Proposer

LEAST_MATCH = 3
"""Tokens that must have occurred before; shorter matches are more often chance than a copy."""


class HybridProposer:
    """Method `hybrid`, over the drafter that the engine has loaded."""

    def __init__(self, drafter: Proposer) -> None:
        self._drafter = drafter
        self._ngram = NgramProposer(least=LEAST_MATCH)
        self._timed: set[str] = set()

    def propose(self, wants: Sequence[tuple[Seq, SamplerState, int]]) -> list[Draft]:
        """Look up first; the model drafts for the rows where nothing was found."""
        drafts = self._ngram.propose(wants)
        places = [at for at, draft in enumerate(drafts) if not draft.tokens or wants[at][0].request_id in self._timed]
        if places:
            for at, draft in zip(places, self._drafter.propose([wants[at] for at in places]), strict=True):
                drafts[at] = draft
        return drafts

    def take_for_read(self, sequence: Seq) -> None:
        """Time the model's drafts, the dearer ones, on this text."""
        self._timed.add(sequence.request_id)
        if isinstance(self._drafter, (DraftModelProposer, EagleProposer)):
            self._drafter.take_for_read(sequence)

    def release(self, request_id: str) -> None:
        """Drop the request's index; the drafter is released by its owner."""
        self._ngram.release(request_id)
        self._timed.discard(request_id)
