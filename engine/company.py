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

LIMIT = 1.06
"""Plain steps that a step with plain requests in it may take by measured costs, which are those of rounds all alike.

Rows of unlike lengths take longer: with 1.09 plain requests kept 0.88 of their speed, and nine tenths are wanted.
"""
MOST_CREDIT = 0.3
"""Plain steps that earlier steps may leave to a later one: a step that drafts is never long."""
LOOKED_UP = frozenset({"ngram", "suffix"})
"""Methods whose drafts cost next to nothing until they are verified."""
_FREE = 1e-6
"""Plain steps: what costs less is measured as nothing."""


class Company:
    """The room for drafts beside plain requests, step by step."""

    def __init__(self) -> None:
        self._credit = 0.0
        """Plain steps that earlier steps stayed below `LIMIT`."""

    def longest(self, cells: Collection[CostCell], methods: Collection[str], share: float, wished: int) -> int:
        """Return the longest draft worth making with a draft model; `wished` where the costs are not known.

        Args:
            cells: measured at this load and context, of any method.
            methods: draft models at work in this step, one after the other.
            share: part of the step's requests that they draft for; the others verify one token each.
            wished: longest draft asked for.
        """
        verify, drafts = _verifying(cells), [_drafting(cells, name) for name in methods]
        if not verify or not drafts:
            return wished
        room = LIMIT + self._credit - 1.0
        fitting = (
            k for k in range(wished, 0, -1) if _at(verify, k * share) + sum(_at(line, k) for line in drafts) <= room
        )
        return next(fitting, 0)

    def share_out(
        self, cells: Collection[CostCell], made: Mapping[str, int], chances: Sequence[Sequence[float]]
    ) -> list[int]:
        """Return how many tokens of each request's draft to verify, and keep what is left of the room as credit.

        Args:
            cells: as above.
            made: longest draft of this step by method; what it took to make is spent.
            chances: by request of the step and place in its draft, the chance that the token is emitted; falling.
                Where tokens were drawn, their chances must not hang on what was drawn: a draft that is cut for its
                own tokens' sake would no longer leave the distribution as it is.
        """
        verify = _verifying(cells)
        if not verify:
            return [len(row) for row in chances]
        room = LIMIT + self._credit - 1.0 - sum(_at(_drafting(cells, name), k) for name, k in made.items())
        ranked = sorted((-chance, place, row) for row, each in enumerate(chances) for place, chance in enumerate(each))
        costs = [0.0] + [_at(verify, tokens / len(chances)) for tokens in range(1, len(ranked) + 1)]
        tokens = _how_many([-chance for chance, _, _ in ranked], costs, room)
        self._credit = min(room - costs[tokens], MOST_CREDIT)
        kept = Counter(row for _, _, row in ranked[:tokens])
        return [kept[row] for row in range(len(chances))]


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


def _verifying(cells: Iterable[CostCell]) -> list[tuple[float, float]]:
    """Cost of verifying k tokens a request, in plain steps beyond the first.

    It begins where the two shortest lengths point to: that much every step costs in which anything is drafted.
    """
    line = _line({cell.k: cell.verify_s / cell.plain_s - 1.0 for cell in cells})
    if len(line) > 2:
        (k, low), (longer, high) = line[1:3]
        line[0] = (0.0, max(0.0, low - k * (high - low) / (longer - k)))
    return line


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
