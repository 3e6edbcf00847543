"""The in-flight rule: which draft length one request uses next. Pure, shared by the engine and the simulator.

The engine's scheduler calls `next_k` before and `observe` after each decode step of a request that came with
`speculation.adaptive`; `cli.simulation` does the same on recorded traces. A call costs a few microseconds.

A draft token at position j is accepted with the task's probability p_j, but requests of one task differ. One odds
multiplier θ per request is shared by all positions: q_j = θ·o_j/(1 + θ·o_j) with o_j = p_j/(1 − p_j). θ is estimated as
Mantel and Haenszel do for a common odds ratio (J. Natl. Cancer Inst. 22, 1959): Σ accepted·(1 − p_j) over
Σ rejected·p_j, both sums begun with the prior's strength. Then the best k maximises a_k / x_k, with a_k the tokens
that a round is expected to emit and x_k its cost in plain steps; nothing is drafted where no k exceeds 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.messages import Adaptive

BreakEven = Callable[[int, int], Sequence[tuple[int, float]]]
"""(load, context tokens) → pairs (k, x): a round at k costs x plain steps there."""

FORGET_ROUND = 0.95
"""Weight that earlier evidence keeps per drafted round: an output's character changes as it goes on."""
FORGET_PLAIN = 0.97
"""The same per plain step: a request that was switched off drifts back to its prior."""
DEFAULT_PRIOR = 0.6
"""Acceptance at each position where the request brought no prior."""
NEGLIGIBLE = 0.01
"""Chance of reaching a draft position below which longer drafts are not looked at."""
CONTEXT_STEP = 256
"""Context tokens after which costs are looked up again."""


class Controller:
    """Draft length of one request, step by step. Not thread-safe; one per request."""

    __slots__ = (
        "_accepts",
        "_adaptive",
        "_best",
        "_hit",
        "_k_max",
        "_ladder",
        "_least_bad",
        "_miss",
        "_odds",
        "_prior",
        "_quiet",
        "_ratio",
        "_seen",
        "_spread",
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
        self._prior = prior
        self._odds = [p / (1 - p) for p in prior]
        self._accepts = [0.0]
        for p in prior:
            self._accepts.append(self._accepts[-1] + 1 - p)
        self._spread = max(1e-3, adaptive.strength * prior[0] * (1 - prior[0]))
        self._hit = self._miss = 0.0
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
        if self._best == 0 and adaptive.probe and self._quiet >= adaptive.probe:
            return self._least_bad
        return self._best

    def keep(self, confidence: Sequence[float]) -> int:
        """Return how many tokens of a draft are worth verifying, by the drafter's own chance of each being accepted.

        Token j stays while it raises tokens per cost over a draft that ends before it. This looks at no position
        beyond j, whose chances depend on token j: the choice must not (see `engine.sampler.Draft.confidence`).
        """
        if self._adaptive is None or self._k_max == 0:
            return len(confidence)
        costs = {k: 1.0 / worth for _, worth, k in self._ladder if worth > 0.0}
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
            self._quiet += 1
            self._hit *= FORGET_PLAIN
            self._miss *= FORGET_PLAIN
            if self._best == 0 and self._quiet & 7 == 0:
                self._choose()
            return
        self._quiet = 0
        drafted = min(drafted, self._k_max)
        accepted = min(accepted, drafted)
        self._hit = self._hit * FORGET_ROUND + self._accepts[accepted]
        self._miss = self._miss * FORGET_ROUND + (self._prior[accepted] if accepted < drafted else 0.0)
        self._choose()

    def _set_costs(self, pairs: Sequence[tuple[int, float]]) -> None:
        """Take over the costs in plain steps; lengths beyond `k_max` are left out.

        A round verifies more than a plain step does: a cost below one step is noise and taken as one.
        """
        worth = {k: 1.0 / max(1.0, x) for k, x in pairs if 0 < k <= self._k_max and x > 0} or {self._k_max: 1.0}
        self._ladder = [(odds, worth.get(k, 0.0), k) for k, odds in enumerate(self._odds[: max(worth)], start=1)]
        self._choose()

    def _choose(self) -> None:
        theta = (self._spread + self._hit) / (self._spread + self._miss)
        alive = emitted = 1.0
        gain = 0.0
        for odds, worth, k in self._ladder:
            q = theta * odds
            alive *= q / (1.0 + q)
            emitted += alive
            if emitted * worth > gain:
                gain, self._least_bad = emitted * worth, k
            if alive < NEGLIGIBLE and gain > 0.0:
                break
        best = self._least_bad if gain > 1.0 else 0
        if best != self._best:
            self.switches += 1
            self._best = best
