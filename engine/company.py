"""How much may be drafted while plain requests decode in the same steps. Pure; called by the core.

A step lasts as long as all its tokens take, so drafts of some requests slow the others down. Where the measured costs
say that steps would take more than `LIMIT` plain steps on the average, the room is shared out: each place in the step
goes to the draft token that is likeliest to be emitted, whosever it is. Alone among their like, requests that speculate
keep the lengths that they ask for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import accumulate

from engine.messages import CostCell
from engine.mixed_costs import StepLine

LIMIT = 1.03
"""Plain steps that a step with plain requests in it may take on the average, by measured costs."""
MOST_CREDIT = 0.3
"""Plain steps that earlier steps may leave to a later one: a step that drafts is never long."""
PATIENCE = 48
"""Steps after which costs are looked at anew: all without a draft, one token is tried; all with drafts, none is.

Only what is tried beside its counterpart is measured, and a cost measured too high would else stay so for ever.
"""
LOOKED_UP = frozenset({"ngram", "suffix"})
"""Methods whose drafts cost next to nothing until they are verified."""
_FREE = 1e-6
"""Plain steps: what costs less is measured as nothing."""


class Company:
    """The room for drafts beside plain requests, step by step."""

    def __init__(self) -> None:
        self._credit = 0.0
        """Plain steps that earlier steps stayed below `LIMIT`."""
        self._alike = 0
        """Latest steps that all had drafts (> 0), or that all had offers but none (< 0)."""

    def longest(
        self, line: StepLine, cells: Collection[CostCell], methods: Collection[str], rows: int, wished: int
    ) -> int:
        """Return the longest draft worth making with a draft model.

        Args:
            line: what verifying costs at this load and context.
            cells: measured there, of any method: what drafting costs.
            methods: draft models at work in this step, one after the other.
            rows: requests that they draft for; the others verify one token each.
            wished: longest draft asked for.
        """
        drafts = [_drafting(cells, name) for name in methods]
        room = LIMIT + self._credit - 1.0
        fitting = (k for k in range(wished, 0, -1) if line.at(k * rows) + sum(_at(each, k) for each in drafts) <= room)
        longest = next(fitting, 0)
        if not longest and self._alike <= -PATIENCE:
            return min(wished, 1)
        if not longest:
            self._alike = min(self._alike, 0) - 1
        return longest

    def share_out(
        self,
        line: StepLine,
        cells: Collection[CostCell],
        made: Mapping[str, int],
        chances: Sequence[Sequence[float]],
    ) -> list[int]:
        """Return how many tokens of each request's draft to verify, and keep what is left of the room as credit.

        Args:
            line: as above.
            cells: as above.
            made: longest draft of this step by method; what it took to make is spent.
            chances: by request of the step and place in its draft, the chance that the token is emitted; falling.
                Where tokens were drawn, their chances must not hang on what was drawn: a draft that is cut for its
                own tokens' sake would no longer leave the distribution as it is.
        """
        room = LIMIT + self._credit - 1.0 - sum(_at(_drafting(cells, name), k) for name, k in made.items())
        ranked = sorted((-chance, place, row) for row, each in enumerate(chances) for place, chance in enumerate(each))
        costs = [line.at(tokens) for tokens in range(len(ranked) + 1)]
        tokens = self._tried(_how_many([-chance for chance, _, _ in ranked], costs, room), len(ranked))
        self._credit = min(room - costs[tokens], MOST_CREDIT)
        kept = Counter(row for _, _, row in ranked[:tokens])
        return [kept[row] for row in range(len(chances))]

    def _tried(self, tokens: int, offered: int) -> int:
        """Return the tokens to verify where `tokens` have room: now and then as in the steps that never occur."""
        if self._alike >= PATIENCE:
            tokens = 0
        elif self._alike <= -PATIENCE:
            tokens = max(tokens, min(offered, 1))
        if tokens:
            self._alike = max(self._alike, 0) + 1
        elif offered:
            self._alike = min(self._alike, 0) - 1
        else:
            self._alike = min(self._alike, 0)
        return tokens


def _how_many(chances: Sequence[float], costs: Sequence[float], room: float) -> int:
    """Return how many of the likeliest tokens to verify; none where it is better to wait until there is more room.

    The first token may cost much more than each further one: then few steps that draft much emit more, for what all
    steps may cost together, than many that draft little.
    """
    within = [n for n in range(1, len(costs)) if costs[n] <= LIMIT - 1.0 + MOST_CREDIT]
    if not within:
        return 0
    emitted = [0.0, *accumulate(chances)]
    best = max(within, key=lambda n: emitted[n] / max(costs[n], _FREE))
    return next((n for n in reversed(within) if costs[n] <= room), 0) if costs[best] <= room else 0


def _drafting(cells: Iterable[CostCell], method: str) -> list[tuple[float, float]]:
    """Cost of making drafts of k tokens, in plain steps."""
    return _line({cell.k: cell.draft_s / cell.plain_s for cell in cells if cell.method == method})


def _line(points: dict[int, float]) -> list[tuple[float, float]]:
    """Cost over draft length, from nothing at 0; a longer draft never costs less than a shorter one."""
    line = [(0.0, 0.0)]
    for k, cost in sorted(points.items()):
        line.append((float(k), max(cost, line[-1][1])))
    return line if len(line) > 1 else []


def _at(line: Sequence[tuple[float, float]], k: float) -> float:
    """The cost at `k`, straight between measured lengths and on beyond the last."""
    if not line:
        return 0.0
    at = next((at for at, (right, _) in enumerate(line) if k <= right), len(line) - 1)
    (left, low), (right, high) = line[max(0, at - 1)], line[max(1, at)]
    return low + (high - low) * (k - left) / (right - left)
