"""Which numbers stand behind a choice: those shown in the reason say what the choice says. Pure; used by `choose`.

A speculative answer is explained by an `a` above its break-even, a plain one by the best rival's at or below it. Where
the numbers at hand say otherwise (too close to call, a margin, a trial in flight), the reason names that state instead.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gateway.routing import reasons
from gateway.routing.estimates import ArmKey, Estimate, Evidence
from gateway.routing.flight import Flight


@dataclass(frozen=True, slots=True)
class Shown:
    """An arm's numbers, and whether they say the same as the path taken."""

    estimate: Estimate
    agrees: bool
    named: bool = False
    """Whether the reason has to name the arm, as it is not the one taken."""

    @property
    def text(self) -> str:
        """The comparison, `ngram-k2 a 1.02 <= 1 + …` where the arm is named."""
        method, k = self.estimate.key
        compared = reasons.comparison(self.estimate)
        return f"{method}-k{k} {compared}" if self.named else compared


def shown_for(
    taken: ArmKey, evidence: Evidence, flight: Flight | None = None, rivals: list[Estimate] | None = None
) -> Shown | None:
    """Return the numbers behind `taken`; None where nothing is known of any speculative arm.

    `flight`: what is known in flight of the leading method, where requests are controlled there. `rivals`: the
    speculative arms that were on offer (default: all).
    """
    if flight is not None and flight.gains:
        return _in_flight(taken, evidence, flight)
    if taken[1] > 0:
        own = evidence.find(taken)
        return Shown(own, agrees(own, speculative=True)) if own else None
    known = [estimate for estimate in (evidence.arms[1:] if rivals is None else rivals) if estimate.requests > 0]
    if not known:
        return None
    best = min(known, key=lambda estimate: estimate.r)
    return Shown(best, agrees(best, speculative=False), named=True)


def agrees(estimate: Estimate, *, speculative: bool) -> bool:
    """Return whether an arm's numbers speak for the path; without costs or a there is nothing to contradict it."""
    if estimate.a is None or estimate.break_even is None:
        return estimate.a is not None or estimate.measured or not speculative
    return (estimate.a > estimate.break_even) == speculative


def _in_flight(taken: ArmKey, evidence: Evidence, flight: Flight) -> Shown | None:
    """Return the limit's own numbers where they speak for it, else those of the length that leads at present."""
    speculative = taken[1] > 0
    lead = max(flight.gains, key=lambda k: flight.gains[k])
    method = flight.method
    for key in dict.fromkeys((taken, (method, lead))) if (flight.gains[lead] > 1) == speculative else ():
        own = evidence.find(key) if key[1] > 0 else None
        if own is not None and own.requests > 0 and own.a is not None and agrees(own, speculative=speculative):
            return Shown(own, agrees=True, named=key != taken)
    if flight.tried <= 0:
        return None
    leading = expected((method, lead), evidence, flight)
    return Shown(
        leading, agrees(leading, speculative=speculative) and flight.requests > 0, named=(method, lead) != taken
    )


def expected(key: ArmKey, evidence: Evidence, flight: Flight) -> Estimate:
    """Return what a draft length is expected to do, from the acceptance by position."""
    k = key[1]
    own = evidence.find(key) or Estimate(key)
    rounds = max((arm.rounds for arm in evidence.arms if arm.key[0] == key[0]), default=0.0)
    undrafted = max(
        (arm.undrafted for arm in evidence.arms if arm.key[0] == key[0] and arm.rounds == rounds), default=0.0
    )
    cost, a = flight.costs[k], flight.gains[k] * flight.costs[k]
    drafted = 1.0 - undrafted
    return replace(
        own,
        requests=flight.tried,
        rounds=rounds,
        a=a,
        z=1.0 - flight.prior[0],
        alpha=flight.ratios[k][0],
        beta=flight.ratios[k][1],
        undrafted=undrafted,
        r=(drafted * cost + undrafted) / (drafted * a + undrafted),
    )
