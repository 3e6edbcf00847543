"""What the in-flight controller is told of a task, and whether the task is worth controlling in flight at all. Pure.

Acceptance by draft position, how much requests differ around it, and the account of probe episodes (plain steps gained
by drafting again after a request had stopped): once its upper bound is at or below zero, probing rests.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from gateway.routing.estimates import Setting
from gateway.routing.observe import GAIN_UNIT, TRIAL_UNIT
from gateway.routing.rounds import MAX_POSITION
from gateway.routing.stats import Layout, Pile, Vector
from gateway.routing.streaks import Streaks, streaks_of
from gateway.routing.tuning import Tuning


@dataclass(slots=True)
class Flight:
    """In-flight control of one method for one kind of request at one load."""

    method: str = ""
    prior: list[float] = field(default_factory=list)
    """Acceptance by draft position, given that all before held."""
    told: list[float] = field(default_factory=list)
    """The same as requests take it along: hopeful at the first position as long as little is known."""
    strength: float = 32.0
    """What the prior weighs, in trials: small where requests of the task differ much."""
    streaks: Streaks = field(default_factory=Streaks)
    """What the last round says of the next."""
    emitted: list[tuple[float, float, float]] = field(default_factory=list)
    """Tokens that a round of 1, 2, … draft tokens is expected to emit: at the prior, where the task's mean is as high
    as it may be with what is known, and for a request that is as good as one in twenty is."""
    requests: float = 0.0
    costs: dict[int, float] = field(default_factory=dict)
    """x_k, a round's cost in plain steps, by draft length; empty where no costs are known."""
    ratios: dict[int, tuple[float, float]] = field(default_factory=dict)
    """(α, β) behind `costs`."""
    gains: dict[int, float] = field(default_factory=dict)
    """Expected gain a_k / x_k at the prior, by draft length."""
    best_gains: dict[int, float] = field(default_factory=dict)
    """The same for a request that is as good as one in twenty is, with what is unsure of the prior counted in."""
    mean_gains: dict[int, float] = field(default_factory=dict)
    """The same for the task's mean where it is as high as it may be with what is known."""
    tried: float = 0.0
    """Requests that took an arm of this method, rounds or none (discounted)."""
    trials: float = 0.0
    """First rounds of requests behind the prior, 16 per request at most."""
    account: float | None = None
    """Mean of plain steps gained per request with probe episodes; None before there was one."""
    account_upper: float = math.inf
    probe: int = 16
    """Plain steps between probes."""
    closed: bool = False
    """Whether probing was found not to pay: a task whose prior says plain then goes plain, but for a small share."""
    sure: bool = False
    """Whether there is enough to call a clear loss by."""

    def off(self, lengths: Iterable[int], *, at_most: bool = False) -> bool:
        """Return whether the task's mean does not gain; `at_most`: not even where it is as high as it may be."""
        gains = self.mean_gains if at_most else self.gains
        return max((gains[k] for k in lengths if k in gains), default=0.0) <= 1.0

    def pays(self, lengths: Iterable[int]) -> bool:
        """Return whether requests should go out under control with these draft lengths.

        They should where the task's mean gains, and while some of its requests may: until probing was found not to
        pay, or not even the best requests would gain.
        """
        known = [k for k in lengths if k in self.gains]
        if not self.off(known):
            return True
        lost = self.sure and max((self.best_gains[k] for k in known), default=0.0) <= 1.0
        return not (self.closed or lost)


class _Known(NamedTuple):
    """What a pile remembers; the tuning is held on to, so that its id stays its own."""

    flight: Flight
    tuning: Tuning


def flight_at(  # noqa: PLR0917 - what is known, of what and where
    pile: Pile | None,
    parent: Pile | None,
    lengths: Sequence[int],
    method: str,
    setting: Setting,
    lean: float,
) -> Flight:
    """Return what is known of a method in flight at one load.

    `parent` holds all tasks of the backend, or the task of an application; it weighs `lean` trials.
    """
    longest = max(lengths, default=0)
    given = ("flight", id(setting.tuning), lean)  # rules of one half-life share piles
    known = pile.memo.get(given) if pile else None
    if not isinstance(known, _Known):
        known = _Known(flight_of(pile, parent, longest, setting.tuning, lean), setting.tuning)
        if pile is not None:
            pile.memo[given] = known
    flight = replace(known.flight, method=method, costs={}, ratios={}, gains={}, best_gains={}, mean_gains={})
    _expect(flight, lengths, setting)
    return flight


def flight_of(pile: Pile | None, parent: Pile | None, longest: int, tuning: Tuning, lean: float) -> Flight:
    """Return the part that does not depend on load: prior, strength and account."""
    total = pile.revealing(1) if pile else None
    wider = parent.revealing(1) if parent else None
    source = pile or parent
    layout = source.layout if source else None
    flight = Flight(strength=tuning.strength_start, probe=tuning.flight_probe)
    depth = min(longest, MAX_POSITION)
    if layout is None or depth == 0:
        flight.prior = [tuning.optimistic_prior] * depth
    else:
        flight.prior = _prior(total, wider, layout, depth, tuning, lean)
        flight.streaks = streaks_of(total, wider, layout)
    if pile is not None and total is not None:
        flight.requests = float(total[pile.layout.index["sn"]])
        flight.tried, flight.trials = pile.requests, float(total[pile.layout.index["bt"]])
        flight.strength = _strength(total, pile.layout, tuning)
        _account(flight, total, pile.layout, tuning)
    flight.told = [
        round(_raised(p, _odds_above(flight, tuning.optimism, between=0.0)), 4) if not position else p
        for position, p in enumerate(flight.prior)
    ]
    flight.emitted = _emitted(flight, tuning.loss_z)
    flight.sure = round(flight.tried) >= tuning.loss_requests and flight.trials >= tuning.loss_trials
    if flight.requests >= tuning.flight_requests and flight.account_upper <= 0:
        flight.probe = tuning.flight_rest
        flight.closed = True
    return flight


def _prior(  # noqa: PLR0917 - as above
    total: Vector | None, wider: Vector | None, layout: Layout, depth: int, tuning: Tuning, lean: float
) -> list[float]:
    index = layout.index
    prior: list[float] = []
    for position in range(depth):
        p = prior[-1] if prior else tuning.optimistic_prior
        for vector, weight in ((wider, 2.0), (total, lean)):
            if vector is not None:
                trials = float(vector[index[f"qt{position}"]]) / TRIAL_UNIT
                passed = float(vector[index[f"qs{position}"]]) / TRIAL_UNIT
                p = (max(0.0, passed) + weight * p) / (max(passed, trials, 0.0) + weight)
        prior.append(round(min(0.995, max(0.005, p)), 4))
    return prior


def _strength(total: Vector, layout: Layout, tuning: Tuning) -> float:
    """Return ν of a beta-binomial by moments over the first rounds of each request, shrunk towards its start value."""
    t, s, tt, st, ss = (float(total[layout.index[name]]) for name in ("bt", "bs", "btt", "bst", "bss"))
    n = float(total[layout.index["sn"]])
    if t <= 0 or n <= 0:
        return tuning.strength_start
    p = min(0.995, max(0.005, s / t))
    spread = p * (1 - p)
    pairs = spread * max(1e-9, tt - t)
    excess = ss - 2 * p * st + p * p * tt - spread * t
    rho_start = 1 / (1 + tuning.strength_start)
    weight = 8.0 * pairs / n
    rho = (excess + rho_start * weight) / (pairs + weight)
    rho = min(0.5, max(1 / (1 + tuning.strength_max), rho))
    return round(1 / rho - 1, 1)


def _account(flight: Flight, total: Vector, layout: Layout, tuning: Tuning) -> None:
    n = float(total[layout.index["fn"]])
    if n <= 0:
        return
    mean = float(total[layout.index["fg"]]) / GAIN_UNIT / n
    square = float(total[layout.index["fgg"]]) / GAIN_UNIT**2 / n
    variance = (n * max(0.0, square - mean * mean) + 4 * tuning.account_sd**2) / (n + 4)
    flight.account = mean
    if n >= tuning.account_requests:
        flight.account_upper = mean + tuning.account_z * math.sqrt(variance / n)


def _expect(flight: Flight, lengths: Sequence[int], setting: Setting) -> None:
    """Fill in costs and expected gains."""
    for k in sorted(k for k in lengths if k <= len(flight.emitted)):
        ratios = setting.ratios(flight.method, k)
        if ratios is not None:
            cost = 1 + sum(ratios)
            usual, mean, best = flight.emitted[k - 1]
            flight.costs[k], flight.ratios[k] = cost, ratios
            flight.gains[k], flight.mean_gains[k], flight.best_gains[k] = usual / cost, mean / cost, best / cost


def _emitted(flight: Flight, z: float) -> list[tuple[float, float, float]]:
    """Return what rounds emit by draft length: at the prior, where the mean is as high as it may be, at best."""
    levels = (1.0, _odds_above(flight, z, between=0.0), _odds_above(flight, z, between=1.0))
    emitted = [1.0, 1.0, 1.0]
    alive = [1.0, 1.0, 1.0]
    found = []
    for p in flight.prior:
        for i, odds in enumerate(levels):
            alive[i] *= _raised(p, odds)
            emitted[i] += alive[i]
        found.append((emitted[0], emitted[1], emitted[2]))
    return found


def _raised(p: float, odds: float) -> float:
    return odds * p / (1 - p + odds * p)


def _odds_above(flight: Flight, z: float, between: float) -> float:
    """Return the odds multiplier of a task's mean (`between` 0) or request (1) `z` standard deviations above the prior.

    Requests scatter as a beta-binomial of the prior's strength; the prior itself is unsure by its requests and trials.
    """
    if not flight.prior:
        return 1.0
    p = flight.prior[0]
    scatter = (between + 1 / max(1.0, flight.requests)) / (flight.strength + 1)
    high = min(0.995, p + z * math.sqrt(p * (1 - p) * (scatter + 1 / max(1.0, flight.trials))))
    return high / (1 - high) * (1 - p) / p
