"""What is drafted in a step: the drafters' guesses, cut to what is worth verifying. Called by the core."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from engine.company import LOOKED_UP, Company
from engine.costs import CostModel
from engine.messages import CostCell
from engine.mixed_costs import StepLine
from engine.sampler import Draft, SamplerState
from engine.sequence import Sequence as Seq
from engine.spec_decode.proposals import Proposals

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Want:
    """A sequence that decodes in this step."""

    sequence: Seq
    state: SamplerState
    k: int
    """Longest draft that it asks for; 0: none."""
    chance: float
    """That a token of its draft is accepted, by its rounds so far."""

    @property
    def method(self) -> str:
        """Who drafts."""
        return self.sequence.request.speculation.method


class Known(NamedTuple):
    """Measured costs at a step's load and context."""

    line: StepLine
    """Of verifying, where rows are unlike."""
    cells: list[CostCell]
    """Of drafting."""


class Drafting:
    """One per core."""

    def __init__(self, proposals: Proposals, costs: CostModel) -> None:
        self._proposals = proposals
        self._costs = costs
        self._company = Company()

    def draft(self, wants: Sequence[Want]) -> list[Draft]:
        """Return a draft for each, in order; an empty one where nothing should be drafted or there is no guess."""
        known = self._costs_beside_plain(wants)
        if known is not None:
            self._shorten(known, wants)
        try:
            drafts = self._proposals.propose([(want.sequence, want.state, want.k) for want in wants])
        except Exception:  # a drafter's fault costs speed only: nothing is drafted in this step
            log.exception("drafting failed")
            return [Draft([]) for _ in wants]
        for want, draft in zip(wants, drafts, strict=True):
            if draft.confidence is not None:
                draft.cut(want.sequence.controller.keep(draft.confidence))
        if known is not None:
            self._share_out(known, wants, drafts)
        return drafts

    def _costs_beside_plain(self, wants: Sequence[Want]) -> Known | None:
        """Return the costs of this step where plain requests share it with drafts; None where they need no care."""
        if not any(want.k for want in wants) or all(want.sequence.request.speculation.k for want in wants):
            return None
        context = sum(len(want.sequence.tokens) for want in wants) // len(wants)
        line = self._costs.mixed_line(len(wants), context)
        return Known(line, self._costs.near(len(wants), context)) if line is not None else None

    def _shorten(self, known: Known, wants: Sequence[Want]) -> None:
        """Let draft models make no longer drafts than there can be room for."""
        drafting = [want for want in wants if want.k and want.method not in LOOKED_UP]
        if not drafting:
            return
        methods, wished = {want.method for want in drafting}, max(want.k for want in drafting)
        longest = self._company.longest(known.line, known.cells, methods, len(drafting), wished)
        for want in drafting:
            want.k = min(want.k, longest)

    def _share_out(self, known: Known, wants: Sequence[Want], drafts: Sequence[Draft]) -> None:
        """Cut drafts to what the step has room for."""
        made: dict[str, int] = {}
        for want, draft in zip(wants, drafts, strict=True):
            made[want.method] = max(made.get(want.method, 0), len(draft.tokens))
        chances = [chances_of(want, draft) for want, draft in zip(wants, drafts, strict=True)]
        lengths = self._company.share_out(known.line, known.cells, made, chances)
        for draft, length in zip(drafts, lengths, strict=True):
            draft.cut(length)


def chances_of(want: Want, draft: Draft) -> list[float]:
    """Return by place in a draft the chance that its token is emitted; of a drawn draft, as if all of it were there."""
    length = len(draft.tokens) if draft.probs is None else want.k
    return [want.chance**place for place in range(1, length + 1)]
