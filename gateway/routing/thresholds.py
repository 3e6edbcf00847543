"""A rule's own thresholds (`break_even`) in terms of the decision's constants. Pure; read by `build_snapshot`.

Bounds and discounts are worked out when statistics are refreshed, not per request. So there is one view of the
statistics for each set of thresholds that a policy names: at the usual ones it is the snapshot itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from statistics import NormalDist
from typing import NamedTuple

from gateway.policy.schema import BreakEven, Rule
from gateway.routing.tuning import Tuning

_USUAL = BreakEven()
_SETTLE_PLAIN = 3
"""Requests beyond `min_requests` before plain, whose error hides its own evidence, is settled on."""


class Thresholds(NamedTuple):
    """What of a rule's `break_even` shapes the statistics; its margin is applied to each decision."""

    confidence: float
    half_life: float
    min_requests: int


USUAL = Thresholds(_USUAL.confidence, _USUAL.half_life, _USUAL.min_requests)


def named_by(rule: Rule) -> Thresholds:
    """Return a rule's thresholds."""
    own = rule.break_even
    return Thresholds(own.confidence, own.half_life, own.min_requests)


def thresholds_of(rules: Iterable[Rule]) -> tuple[Thresholds, ...]:
    """Return the thresholds that rules name beside the usual ones, in order, each once."""
    return tuple(one for one in dict.fromkeys(map(named_by, rules)) if one != USUAL)


@lru_cache(maxsize=256)
def tuned(tuning: Tuning, wanted: Thresholds) -> Tuning:
    """Return the constants under which a view is made; those given where the thresholds are the usual ones.

    Every one-sided bound keeps its place among the others and scales with the normal quantile of `confidence`; the
    number of requests after which a node settles come what may scales with its square, as the error of a mean asks.
    A clear loss waits for no minimum.
    """
    if wanted == USUAL:
        return tuning
    quantile = NormalDist().inv_cdf
    factor = 1.0
    if wanted.confidence != USUAL.confidence:
        factor = quantile(wanted.confidence) / quantile(USUAL.confidence)
    least = wanted.min_requests
    return replace(
        tuning,
        half_life=wanted.half_life if wanted.half_life != USUAL.half_life else tuning.half_life,
        settle_z=factor * tuning.settle_z,
        settle_plain_z=factor * tuning.settle_plain_z,
        switch_z=factor * tuning.switch_z,
        loss_bound_z=factor * tuning.loss_bound_z,
        loss_z=factor * tuning.loss_z,
        account_z=factor * tuning.account_z,
        settle_requests=least,
        settle_plain_requests=least + _SETTLE_PLAIN,
        settle_always=max(least, round(factor * factor * tuning.settle_always)),
        loss_requests=min(least, tuning.loss_requests),
        flight_requests=least,
    )
