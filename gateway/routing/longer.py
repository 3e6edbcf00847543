"""What shorter drafts say of a longer one that has hardly run. Pure; called by `estimates`.

Requests tell of every shorter draft than the one they ran at, so that longer ones are known from fewer requests, or
none. Up to the shorter length a longer draft does the same; what lies beyond is extrapolated from the acceptance by
position, and put together with the difference on those requests that tell of both (double sampling: W. G. Cochran,
Sampling Techniques, 3rd ed. 1977, chapter 12). At a high load this shows what a long draft costs without trying it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gateway.routing.observe import TRIAL_UNIT
from gateway.routing.rounds import MAX_POSITION
from gateway.routing.stats import Pile

if TYPE_CHECKING:
    from gateway.routing.estimates import Estimate, Evidence, Setting

THIN = 0.5
"""A draft length known from a smaller share of the requests than a shorter one is judged from that one."""
UNSURE = 0.3
"""Standard deviation of the tokens beyond the shorter length, as a share of the most that there could be: between
none and all a uniform distribution has 0.29."""
LEAN = 2.0
"""Trials that the position before weighs in the acceptance of a position."""


def acceptance(pile: Pile, start: float) -> list[float]:
    """Return the acceptance by draft position, each given that all before held; it goes on as at the last one seen."""
    found: list[float] | None = pile.memo.get("acceptance")  # type: ignore[assignment]  # each entry has its own type
    if found is None:
        total, index = pile.revealing(1), pile.layout.index
        found, p = [], start
        for position in range(MAX_POSITION):
            trials, passed = (max(0.0, float(total[index[f"{kind}{position}"]])) / TRIAL_UNIT for kind in ("qt", "qs"))
            p = (min(passed, trials) + LEAN * p) / (trials + LEAN)
            found.append(p)
        pile.memo["acceptance"] = found
    return found


def tokens_of(chances: Sequence[float], k: int) -> tuple[float, float]:
    """Return the tokens that a round at `k` emits, and the chance that its whole draft holds."""
    alive = emitted = 1.0
    for position in range(k):
        alive *= chances[min(position, len(chances) - 1)]
        emitted += alive
    return emitted, alive


def judge_longer(evidence: Evidence, row: int, first: int, pile: Pile, setting: Setting) -> None:
    """Judge the arm in `row` from the longest one of its method (rows from `first` on) that is much better known."""
    arms = evidence.arms
    arm = arms[row]
    base = next((i for i in range(row - 1, first - 1, -1) if THIN * arms[i].requests > arm.requests), None)
    if base is None:
        return
    chances = acceptance(pile, setting.tuning.optimistic_prior)
    gap, sd = _beyond(arms[base], arm, chances)
    if arm.requests > 0 and evidence.spread[row][base] > 0:
        seen, extrapolated = evidence.spread[row][base] ** -2, max(1e-6, sd) ** -2
        gap = (evidence.gap[row][base] * seen + gap * extrapolated) / (seen + extrapolated)
        sd = (seen + extrapolated) ** -0.5
    arm.r, arm.se = arms[base].r + gap, math.hypot(arms[base].se, sd)
    for i in range(len(arms)):
        if i != row:
            evidence.gap[row][i] = evidence.gap[base][i] + gap
            evidence.spread[row][i] = math.hypot(evidence.spread[base][i] if i != base else 0.0, sd)
            evidence.gap[i][row], evidence.spread[i][row] = -evidence.gap[row][i], evidence.spread[row][i]


def _beyond(shorter: Estimate, longer: Estimate, chances: Sequence[float]) -> tuple[float, float]:
    """Return what the longer draft's relative time is above the shorter one's, extrapolated, with its error."""
    (emitted, full), (more, _) = tokens_of(chances, shorter.key[1]), tokens_of(chances, longer.key[1])
    steps = shorter.undrafted
    without = steps / ((1.0 - steps) * (shorter.a or 1.0) + steps)  # share of tokens from undrafted steps
    rounds = max(0.0, shorter.r - without)
    factor = ((longer.break_even or 1.0) / more) / ((shorter.break_even or 1.0) / emitted)
    unsure = UNSURE * full * (longer.key[1] - shorter.key[1]) / more
    return rounds * (factor - 1.0), math.hypot(rounds * factor * unsure, (factor - 1.0) * shorter.se)
