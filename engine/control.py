"""The in-flight rule: which draft length one request uses next. Pure, shared by the engine and the simulator.

The engine's scheduler calls `next_k` before and `observe` after each decode step of a request that came with
`speculation.adaptive`; `cli.simulation` does the same on recorded traces. A call costs a few microseconds.

A draft token at position j is accepted with the task's probability p_j, but requests of one task differ, and so do the
stretches of one output. q_j = θ·m·o_j/(1 + θ·m·o_j) with o_j = p_j/(1 − p_j), where
- θ is the request's own odds multiplier, one for position 0 (does a draft start right?) and one for those after it
  (does it go on?). Each is estimated as Mantel and Haenszel do for a common odds ratio (J. Natl. Cancer Inst. 22,
  1959), Σ accepted·(1 − q_j) over Σ rejected·q_j, both sums begun with the prior's strength, and takes some of the
  other's sums;
- m is the task's: what a round that was accepted in full says of the next one, what any other round does, and what a
  step does for which the drafter had nothing.
Then the best k maximises a_k / x_k, with a_k the tokens that a round is expected to emit and x_k its cost in plain
steps; nothing is drafted where no k exceeds 1. After a round that failed or a step without a draft less is expected
than usual: a moment that passes, in which time is worth what the request gains at other times, G tokens per plain step.
There the best k maximises a_k − G·x_k, so that drafts are shorter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from engine.messages import Adaptive

BreakEven = Callable[[int, int], Sequence[tuple[int, float]]]
"""(load, context tokens) → pairs (k, x): a round at k costs x plain steps there."""

FORGET_ROUND = 0.97
"""Weight that earlier evidence keeps per drafted round: an output's character changes as it goes on."""
FORGET_PLAIN = 0.98
"""The same per plain step: a request that was switched off drifts back to its prior."""
DEFAULT_PRIOR = 0.6
"""Acceptance at each position where the request brought no prior."""
NEGLIGIBLE = 0.01
"""Chance of reaching a draft position below which longer drafts are not looked at."""
CONTEXT_STEP = 256
"""Context tokens after which costs are looked up again."""
LENT = 0.25
"""What evidence on the start of drafts counts for their continuation, and the other way round."""
LATER_STRENGTH = 0.7
"""The prior's strength beyond the first draft position, as a share of that at the first."""
STALE_AFTER = 4
"""Steps that were to be without a draft after which the last round says no more of the next than others do."""
WAIT_GROWTH = 1.8
"""Factor on the plain steps before the next try, for each try in a row of which nothing was accepted."""
LONGEST_WAIT = 256
"""Plain steps that such waits may grow to."""


class _Chances:
    """The task's acceptance by position after one kind of round."""

    __slots__ = ("chance", "misses", "odds")

    def __init__(self, prior: Sequence[float], first: float, later: float) -> None:
        self.odds = [(later if j else first) * p / (1 - p) for j, p in enumerate(prior)]
        self.chance = [o / (1 + o) for o in self.odds]
        self.misses = [0.0, 0.0]
        """`[a]`: Σ (1 − q_j) over positions 1 to a − 1."""
        for q in self.chance[1:]:
            self.misses.append(self.misses[-1] + 1 - q)


class Controller:
    """Draft length of one request, step by step. Not thread-safe; one per request."""

    __slots__ = (
        "_adaptive",
        "_after_full",
        "_after_gap",
        "_after_other",
        "_best",
        "_hit",
        "_k_max",
        "_ladder",
        "_least_bad",
        "_miss",
        "_now",
        "_quiet",
        "_ratio",
        "_seen",
        "_spread",
        "_unknown",
        "_wait",
        "switches",
    )

    def __init__(self, k_max: int, adaptive: Adaptive | None, *, break_even: BreakEven | None = None) -> None:
        """Take the request's `speculation.k` and `.adaptive`; without the latter the draft length stays at `k_max`.

        `break_even` gives fresher costs than the request's own list, by load and context, where the engine has them.
        """
        self.switches = 0
        """Changes of the draft length so far."""
        self._k_max = k_max
        self._adaptive = adaptive
        self._best = k_max
        self._ratio = break_even
        self._quiet = 0
        self._least_bad = k_max
        self._seen: tuple[int, int] | None = None
        if adaptive is None or k_max == 0:
            return
        prior = [min(0.995, max(0.005, p)) for p in adaptive.prior] or [DEFAULT_PRIOR]
        prior = (prior + [prior[-1]] * k_max)[:k_max]
        self._unknown = self._now = _Chances(prior, 1.0, 1.0)
        self._after_full = _Chances(prior, *_multipliers(adaptive.after_full))
        self._after_other = _Chances(prior, *_multipliers(adaptive.after_other))
        self._after_gap = _Chances(prior, *_multipliers(adaptive.after_gap))
        later = prior[min(1, k_max - 1)]
        self._spread = (
            max(1e-3, adaptive.strength * prior[0] * (1 - prior[0])),
            max(1e-3, adaptive.strength * LATER_STRENGTH * later * (1 - later)),
        )
        self._hit, self._miss = [0.0, 0.0], [0.0, 0.0]
        self._wait = float(adaptive.probe)
        self._set_costs(adaptive.break_even)
        self.switches = 0

    def next_k(self, load: int, context: int) -> int:
        """Return the draft length for the coming step, 0 being plain: `load` running sequences, `context` tokens."""
        adaptive = self._adaptive
        if adaptive is None or self._k_max == 0:
            return self._k_max
        if self._ratio is not None:
            where = (load, context // CONTEXT_STEP)
            if where != self._seen:
                self._seen = where
                self._set_costs(self._ratio(load, context))
        if self._best == 0 and adaptive.probe and self._quiet >= self._wait:
            return self._least_bad
        return self._best

    def keep(self, confidence: Sequence[float]) -> int:
        """Return how many tokens of a draft are worth verifying, by the drafter's own chance of each being accepted.

        Token j stays while it raises tokens per cost over a draft that ends before it. This looks at no position
        beyond j, whose chances depend on token j: the choice must not (see `engine.sampler.Draft.confidence`).
        """
        if self._adaptive is None or self._k_max == 0:
            return len(confidence)
        costs = {k: 1.0 / worth for k, worth in self._ladder if worth > 0.0}
        alive = emitted = before = 1.0
        for kept, chance in enumerate(confidence):
            cost = next((x for k, x in costs.items() if k > kept), before)
            alive *= min(1.0, max(0.0, chance))
            if (emitted + alive) / cost < emitted / before:
                return kept
            emitted, before = emitted + alive, cost
        return len(confidence)

    def observe(self, drafted: int, accepted: int) -> None:
        """Learn from one step: `drafted` tokens were proposed (0: a plain step), `accepted` of them held."""
        if self._adaptive is None or self._k_max == 0:
            return
        if drafted <= 0:
            self._plain()
            return
        drafted = min(drafted, self._k_max)
        accepted = max(0, min(accepted, drafted))
        if self._adaptive.probe and self._quiet >= self._wait:
            longest = max(LONGEST_WAIT, self._adaptive.probe)
            self._wait = self._adaptive.probe if accepted else min(longest, self._wait * WAIT_GROWTH)
        self._quiet = 0
        self._forget(FORGET_ROUND, FORGET_ROUND if accepted and drafted > 1 else 1.0)
        now = self._now
        if accepted:
            self._hit[0] += 1 - now.chance[0]
            self._hit[1] += now.misses[accepted]
        if accepted < drafted:
            self._miss[accepted > 0] += now.chance[accepted]
        self._now = self._after_full if accepted == drafted else self._after_other
        self._choose()

    def _plain(self) -> None:
        """Drift back to the prior; look again every few steps, as every drafted round does."""
        self._quiet += 1
        self._forget(FORGET_PLAIN, FORGET_PLAIN)
        if self._now is not self._after_gap and (self._best or self._quiet == STALE_AFTER):
            self._now = self._after_gap
            self._choose()
        elif self._best == 0 and self._quiet & 7 == 0:
            self._choose()

    def _forget(self, first: float, later: float) -> None:
        """Weigh down earlier evidence: that on later positions only by a round that says something of them."""
        hit, miss = self._hit, self._miss
        hit[0] *= first
        miss[0] *= first
        hit[1] *= later
        miss[1] *= later

    def _set_costs(self, pairs: Sequence[tuple[int, float]]) -> None:
        """Take over the costs in plain steps; lengths beyond `k_max` are left out.

        A round verifies more than a plain step does: a cost below one step is noise and taken as one.
        """
        worth = {k: 1.0 / max(1.0, x) for k, x in pairs if 0 < k <= self._k_max and x > 0} or {self._k_max: 1.0}
        self._ladder = [(k, worth.get(k, 0.0)) for k in range(1, max(worth) + 1)]
        self._choose()

    def _choose(self) -> None:
        hit, miss, spread = self._hit, self._miss, self._spread
        theta = (spread[0] + hit[0] + LENT * hit[1]) / (spread[0] + miss[0] + LENT * miss[1])
        later = (spread[1] + hit[1] + LENT * hit[0]) / (spread[1] + miss[1] + LENT * miss[0])
        gain, best = self._most_per_cost(self._now, theta, later)
        self._least_bad = best
        if gain <= 1.0:
            best = 0
        elif self._now is not self._unknown and self._now is not self._after_full:
            usual, _ = self._most_per_cost(self._unknown, theta, later)
            if usual > gain:
                best = self._most_at(usual, theta, later)
        if best != self._best:
            self.switches += 1
            self._best = best

    def _most_per_cost(self, chances: _Chances, theta: float, later: float) -> tuple[float, int]:
        """Return the highest expected gain a_k / x_k and its draft length."""
        alive = emitted = 1.0
        gain, best = 0.0, self._k_max
        for (k, worth), odds in zip(self._ladder, chances.odds, strict=False):
            q = theta * odds
            alive *= q / (1.0 + q)
            emitted += alive
            if emitted * worth > gain:
                gain, best = emitted * worth, k
            if alive < NEGLIGIBLE and gain > 0.0:
                break
            theta = later
        return gain, best

    def _most_at(self, usual: float, theta: float, later: float) -> int:
        """Return the draft length that gains most now where time is worth `usual` tokens per plain step."""
        alive = emitted = 1.0
        most, best = -math.inf, self._k_max
        for (k, worth), odds in zip(self._ladder, self._now.odds, strict=False):
            q = theta * odds
            alive *= q / (1.0 + q)
            emitted += alive
            if worth > 0.0 and emitted - usual / worth > most:
                most, best = emitted - usual / worth, k
            theta = later
        return best


def _multipliers(given: Sequence[float]) -> tuple[float, float]:
    """Return the odds multipliers of the first position and of the later ones, 1 where none came."""
    first, later = (*given, 1.0, 1.0)[:2]
    return min(20.0, max(0.05, first)), min(20.0, max(0.05, later))
