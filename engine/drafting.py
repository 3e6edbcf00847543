"""What is drafted in a step: the drafters' guesses, cut to what is worth verifying. Called by the core."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from engine.company import LOOKED_UP, Company
from engine.costs import CostModel
from engine.messages import CostCell
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


class Drafting:
    """One per core."""

    def __init__(self, proposals: Proposals, costs: CostModel) -> None:
        self._proposals = proposals
        self._costs = costs
        self._company = Company()

    def draft(self, wants: Sequence[Want]) -> list[Draft]:
        """Return a draft for each, in order; an empty one where nothing should be drafted or there is no guess."""
        cells = self._cells_beside_plain(wants)
        if cells:
            self._shorten(cells, wants)
        try:
            drafts = self._proposals.propose([(want.sequence, want.state, want.k) for want in wants])
        except Exception:  # a drafter's fault costs speed only: nothing is drafted in this step
            log.exception("drafting failed")
            return [Draft([]) for _ in wants]
        for want, draft in zip(wants, drafts, strict=True):
            if draft.confidence is not None:
                draft.cut(want.sequence.controller.keep(draft.confidence))
        if cells:
            self._share_out(cells, wants, drafts)
        return drafts

    def _cells_beside_plain(self, wants: Sequence[Want]) -> list[CostCell]:
        """Return the costs of this step where plain requests share it with drafts; none where they need no care."""
        if not any(want.k for want in wants) or all(want.sequence.request.speculation.k for want in wants):
            return []
        return self._costs.near(len(wants), sum(len(want.sequence.tokens) for want in wants) // len(wants))

    def _shorten(self, cells: list[CostCell], wants: Sequence[Want]) -> None:
        """Let draft models make no longer drafts than there can be room for."""
        drafting = [want for want in wants if want.k and want.method not in LOOKED_UP]
        if not drafting:
            return
        methods, wished = {want.method for want in drafting}, max(want.k for want in drafting)
        longest = self._company.longest(cells, methods, len(drafting) / len(wants), wished)
        for want in drafting:
            want.k = min(want.k, longest)

    def _share_out(self, cells: list[CostCell], wants: Sequence[Want], drafts: Sequence[Draft]) -> None:
        """Cut drafts to what the step has room for."""
        made: dict[str, int] = {}
        for want, draft in zip(wants, drafts, strict=True):
            made[want.method] = max(made.get(want.method, 0), len(draft.tokens))
        chances = [chances_of(want, draft) for want, draft in zip(wants, drafts, strict=True)]
        for draft, length in zip(drafts, self._company.share_out(cells, made, chances), strict=True):
            draft.cut(length)


def chances_of(want: Want, draft: Draft) -> list[float]:
    """Return by place in a draft the chance that its token is emitted; of a drawn draft, as if all of it were there."""
    length = len(draft.tokens) if draft.probs is None else want.k
    return [want.chance**place for place in range(1, length + 1)]
