"""The zero-accept alarm: rounds in which nothing is accepted lengthen the tail, whatever an arm gains on average. Pure.

It is raised per kind of request and arm at the threshold of the rule that asks (`zero_accept_alarm`), shows in a
decision's numbers, in metrics and on the page, and never switches an arm: 35 % zero-accept rounds can be far faster.
"""

from __future__ import annotations

import math

from gateway.routing.estimates import Estimate

NEEDED_REQUESTS = 5
NEEDED_ROUNDS = 20
"""What an arm has to have done before its rate says anything."""
Z = 1.64
"""One-sided: the rate must lie above the threshold with 95 % confidence, rounds taken as independent."""


def alarming(estimate: Estimate, threshold: float | None) -> bool | None:
    """Return whether an arm's zero-accept rate is above a rule's threshold, None where the rule has no alarm."""
    if threshold is None:
        return None
    z, rounds = estimate.z, estimate.rounds
    if z is None or round(estimate.requests) < NEEDED_REQUESTS or rounds < NEEDED_ROUNDS:
        return False
    return z - Z * math.sqrt(max(0.0, threshold * (1 - threshold)) / rounds) > threshold
