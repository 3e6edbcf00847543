"""What is known of each arm at one load and context: relative time, its error, differences between arms. Pure.

Relative time r is the arm's time over plain time of the same tokens (gain = 1/r). The request is the sampling unit and
r a ratio of sums, so that long requests weigh by their tokens. Arms of one method are compared on the same requests:
a request at k says what each shorter k would have taken, and such paired differences vary far less.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gateway.routing.costs import Costs
from gateway.routing.longer import judge_longer
from gateway.routing.stats import Pile
from gateway.routing.told import Told
from gateway.routing.tuning import Tuning

PLAIN_KEY = ("plain", 0)
ArmKey = tuple[str, int]
"""(method, k) within one backend; plain is `("plain", 0)`."""
ALIKE = 0.9
"""Correlation between draft lengths of one method before a request has told of them: what makes one good makes all."""


@dataclass(slots=True)
class Estimate:
    """One arm's numbers. None: not known."""

    key: ArmKey
    requests: float = 0.0
    """Requests that inform it, those at longer drafts included (discounted)."""
    rounds: float = 0.0
    a: float | None = None
    z: float | None = None
    alpha: float | None = None
    beta: float | None = None
    measured_sum: float | None = None
    """α + β from time per token and a, where no costs are reported."""
    undrafted: float = 0.0
    """Share of steps without a draft."""
    r: float = 1.0
    """Relative time; an assumption where `requests` is 0."""
    se: float = 0.0
    measured: bool = False
    """Whether r comes from measured time per token rather than from acceptance and costs."""

    @property
    def break_even(self) -> float | None:
        """1 + α + β, None where neither costs nor their sum are known."""
        if self.alpha is not None and self.beta is not None:
            return 1.0 + self.alpha + self.beta
        return None if self.measured_sum is None else 1.0 + self.measured_sum

    @property
    def timed(self) -> bool:
        """Whether r says anything: costs or measured times are known, and requests."""
        return self.requests > 0 and (self.alpha is not None or self.measured)

    @property
    def gain(self) -> float:
        """1/r."""
        return 1.0 / self.r if self.r > 0 else math.inf


@dataclass(slots=True)
class Evidence:
    """All arms of one backend for one kind of request; plain first."""

    plain_s: float | None
    arms: list[Estimate]
    spread: list[list[float]] = field(default_factory=list)
    """Standard error of r_i − r_j."""
    gap: list[list[float]] = field(default_factory=list)
    """r_i − r_j, on the same requests where there are any."""

    def find(self, key: ArmKey) -> Estimate | None:
        """Return the estimate of an arm, if it is offered."""
        for arm in self.arms:
            if arm.key == key:
                return arm
        return None


Differences = dict[tuple[int, int], tuple[float, float]]
"""By places i < j among the arms of one method: r_i − r_j on the same requests, and its standard error."""


class _Times(NamedTuple):
    """An arm's relative time over some requests: `cost` plain steps a round, and where these lie in `Told.gram`."""

    r: float
    cost: float
    place: int


@dataclass(slots=True)
class Prior:
    """What other tasks say about an arm: mean relative time and its standard deviation between tasks."""

    r: float
    sd: float


@dataclass(frozen=True, slots=True)
class Setting:
    """Where the arms are compared: costs of the backend (None: it reports none) at a load and a context length."""

    costs: Costs | None
    load: float
    context: float
    tuning: Tuning

    def ratios(self, method: str, k: float) -> tuple[float, float] | None:
        """Return (α, β) here, None where unknown."""
        return self.costs.ratios(method, k, self.load, self.context) if self.costs else None


def evidence_at(
    piles: Mapping[str, Pile], offered: Sequence[ArmKey], setting: Setting, priors: Mapping[ArmKey, Prior]
) -> Evidence:
    """Return estimates of plain and of the `offered` arms; without costs r stays an assumption."""
    arms = [Estimate(PLAIN_KEY)]
    blocks: list[tuple[list[int], Differences]] = []
    by_method: dict[str, list[int]] = {}
    for method, k in offered:
        if k > 0:
            by_method.setdefault(method, []).append(k)
    for method, lengths in by_method.items():
        first = len(arms)
        arms += [Estimate((method, k)) for k in sorted(lengths)]
        pile = piles.get(method)
        rows = list(range(first, len(arms)))
        if pile is not None and setting.costs is not None:
            blocks.append((rows, _method_block(pile, arms[first:], setting)))
        else:
            for arm in arms[first:]:
                if pile is not None and arm.key[1] in pile.layout.lengths:
                    _fill_counts(arm, pile.told(arm.key[1]))
                _fill_costs(arm, setting, arm.key[1])
    for arm in arms[1:]:
        _shrink(arm, priors.get(arm.key), setting.tuning)
    plain_s = setting.costs.plain_s(setting.load, setting.context) if setting.costs else None
    evidence = _with_differences(Evidence(plain_s, arms), blocks)
    for rows, _ in blocks:
        pile = piles[arms[rows[0]].key[0]]
        for row in rows[1:]:
            judge_longer(evidence, row, rows[0], pile, setting)
    return evidence


def _method_block(pile: Pile, arms: list[Estimate], setting: Setting) -> Differences:
    """Fill the arms of one method; return the paired differences between them that are known."""
    found: Differences = {}
    tuning = setting.tuning
    for j, arm in enumerate(arms):
        k = arm.key[1]
        told = pile.told(k)
        if k not in told.at or told.requests <= 0 or told.tokens <= 0:
            _fill_costs(arm, setting, k)
            continue
        times = _relative_times(told, arms[: j + 1], setting)
        _fill_counts(arm, told)
        arm.r = times[j].r
        wide = max(1.0, arm.r)
        variance = _variance(told, times[j])
        arm.se = _standard_error(variance, told.effective, wide * tuning.prior_sd, tuning.prior_sd_requests)
        _fill_costs(arm, setting, told.at[k].drafted / arm.rounds if arm.rounds else k)
        paired = pile.told(k, paired=True)
        if paired is not told:
            if paired.requests <= 0 or paired.tokens <= 0:
                continue
            times = _relative_times(paired, arms[: j + 1], setting)
        for i in range(j):
            if paired.tokens_at(arms[i].key[1]) < 0.99 * paired.tokens:
                continue  # recorded while the shorter one was not on offer
            variance = _variance(paired, times[i], times[j])
            spread = _standard_error(variance, paired.effective, wide * tuning.paired_sd, tuning.paired_requests)
            found[i, j] = (times[i].r - times[j].r, spread)
    return found


def _relative_times(told: Told, arms: Sequence[Estimate], setting: Setting) -> list[_Times]:
    """Return r of each arm over the same requests, and what it is made of."""
    found = []
    for arm in arms:
        method, k = arm.key
        counts = told.at[k]
        ratios = setting.ratios(method, counts.drafted / counts.rounds if counts.rounds else k) or (0.0, 0.0)
        cost = 1.0 + ratios[0] + ratios[1]
        found.append(_Times((cost * counts.rounds + counts.undrafted) / told.tokens, cost, counts.place))
    return found


def _variance(told: Told, one: _Times, other: _Times | None = None) -> float:
    """Return the variance of an arm's r by request, or that of the difference between two."""
    parts = [(0, -one.r), (one.place, one.cost), (one.place + 1, 1.0)]
    if other is not None:
        parts[0] = (0, other.r - one.r)
        parts += [(other.place, -other.cost), (other.place + 1, -1.0)]
    total = 0.0
    for row, left in parts:
        products = told.gram[row]
        for column, right in parts:
            total += left * right * products[column]
    return total / told.tokens**2


def _fill_counts(arm: Estimate, told: Told) -> None:
    _, rounds, undrafted, _, accepted, zero = told.at[arm.key[1]]
    arm.requests, arm.rounds = told.requests, rounds
    if rounds > 0:
        arm.a = 1.0 + accepted / rounds
        arm.z = zero / rounds
    arm.undrafted = undrafted / (rounds + undrafted) if rounds + undrafted > 0 else 0.0


def _standard_error(variance: float, n: float, prior_sd: float, weight: float) -> float:
    """Return the standard error of a mean over n requests, its variance shrunk towards what is assumed beforehand."""
    per_request = (n * n * max(0.0, variance) + weight * prior_sd**2) / (n + weight)
    return math.sqrt(per_request / max(n, 1e-9))


def _fill_costs(arm: Estimate, setting: Setting, mean_k: float) -> None:
    ratios = setting.ratios(arm.key[0], mean_k)
    if ratios is not None:
        arm.alpha, arm.beta = ratios


def _shrink(arm: Estimate, prior: Prior | None, tuning: Tuning) -> None:
    """Combine an arm's own mean with other tasks' (normal with normal); with neither, be optimistic and unsure."""
    if arm.requests <= 0:
        if prior is not None:
            arm.r, arm.se = prior.r, math.hypot(prior.sd, tuning.prior_sd / math.sqrt(tuning.prior_sd_requests))
        else:
            p, k = tuning.optimistic_acceptance, arm.key[1]
            tokens = (1 - p ** (k + 1)) / (1 - p)
            arm.se = tuning.prior_sd
            arm.r = (arm.break_even or 1.0) / tokens + tuning.optimism * arm.se
    elif prior is not None and arm.se > 0:
        own, others = arm.se**-2, prior.sd**-2
        arm.r = float((arm.r * own + prior.r * others) / (own + others))
        arm.se = (own + others) ** -0.5


def _with_differences(evidence: Evidence, blocks: list[tuple[list[int], Differences]]) -> Evidence:
    arms = evidence.arms
    evidence.gap = [[one.r - other.r for other in arms] for one in arms]
    evidence.spread = [[0.0] * len(arms) for _ in arms]
    known = {(rows[i], rows[j]): pair for rows, differences in blocks for (i, j), pair in differences.items()}
    for j in range(len(arms)):
        for i in range(j):
            pair = known.get((i, j))
            if pair is not None:
                evidence.gap[i][j], evidence.gap[j][i] = pair[0], -pair[0]
            spread = pair[1] if pair is not None else _apart(arms[i], arms[j])
            evidence.spread[i][j] = evidence.spread[j][i] = spread
    return evidence


def _apart(one: Estimate, other: Estimate) -> float:
    """Return the standard error of a difference that no request has shown.

    Draft lengths of one method of which no request tells share what is unsure of them: the acceptance of the task.
    """
    variance = one.se**2 + other.se**2
    if one.key[0] == other.key[0] and not one.requests and not other.requests:
        variance -= 2 * ALIKE * one.se * other.se
    return math.sqrt(max(0.0, variance))
