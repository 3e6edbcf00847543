"""The gain against the randomised holdout: post-stratified ratio estimator from sums and second moments. Pure.

W. G. Cochran, Sampling Techniques (3rd ed.), 6.10 (separate ratio estimate) and 5A.9 (post-stratification). Called by
`study`. Time is in units of 100 µs inside, as the roll-ups keep their second moments.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from gateway.db import ActivitySums, Stratum
from gateway.ops.figures import student_t
from gateway.ops.study_model import NEEDED, Gain, Saving

_UNIT_S = 1e-4


class Moments(msgspec.Struct):
    """Count, sums and second moments of tokens and time over requests."""

    n: int = 0
    tokens: int = 0
    units: float = 0.0
    tokens_tokens: float = 0.0
    tokens_units: float = 0.0
    units_units: float = 0.0

    def add(self, other: Moments) -> None:
        """Add another group's."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    @property
    def residual(self) -> float:
        """Σ (time − r·tokens)² · n/(n − 1): the variance of Σ time given Σ tokens."""
        if self.n < 2 or not self.tokens:
            return 0.0
        r = self.units / self.tokens
        squares = self.units_units - 2 * r * self.tokens_units + r * r * self.tokens_tokens
        return max(0.0, squares) * self.n / (self.n - 1)


class Pair(NamedTuple):
    """Both sides of one stratum."""

    control: Moments
    routed: Moments


Place = tuple[str, str, str, int]
"""(task, temperature, context, share of the holdout): all known before the draw."""


class Gains(NamedTuple):
    """The gain over everything, by task and by application (busiest first)."""

    total: Gain
    tasks: list[Gain]
    applications: list[Gain]


def time_of(sums: ActivitySums) -> Moments:
    """Return the moments of decode time as clients saw it."""
    return Moments(
        sums.measured, sums.decode_tokens, sums.decode_us / 100, sums.tokens_tokens, sums.tokens_time, sums.time_time
    )


def accelerator_of(sums: ActivitySums) -> Moments:
    """Return the moments of accelerator time; empty unless it is known of every measured request."""
    if not sums.accelerator_tokens or sums.accelerator_tokens != sums.decode_tokens:
        return Moments()
    return Moments(
        sums.measured,
        sums.accelerator_tokens,
        sums.accelerator_us / 100,
        sums.tokens_tokens,
        sums.tokens_accelerator,
        sums.accelerator_accelerator,
    )


def gains(strata: Iterable[Stratum], names: Mapping[str, str]) -> Gains:
    """Return what routing gained over what the holdout kept plain; `names` are those of API keys.

    Only requests count that the draw could have held: where a rule, a veto or the p99 guard left one path, both sides
    would take it.
    """
    measured = [part for part in strata if part.sums.measured]
    control = _by_place(part for part in measured if part.draw < 0 and part.arm.k == 0)
    routed = [part for part in measured if part.draw > 0]
    tasks, keys = sorted({part.task for part in measured}), sorted({part.key_id for part in measured})
    by_key = [
        _gain(Gain("application", names.get(key, key), key), control, [p for p in routed if p.key_id == key])
        for key in keys
    ]
    return Gains(
        _gain(Gain("all", "all"), control, routed),
        [_gain(Gain("task", task), control, [p for p in routed if p.task == task]) for task in tasks],
        sorted(by_key, key=lambda gain: (-gain.tokens, gain.key_id)),
    )


def _by_place(strata: Iterable[Stratum]) -> dict[Place, ActivitySums]:
    found: dict[Place, ActivitySums] = defaultdict(ActivitySums)
    for part in strata:
        found[part.task, part.temperature, part.context, abs(part.draw)].add(part.sums)
    return found


def _gain(gain: Gain, control: Mapping[Place, ActivitySums], routed: list[Stratum]) -> Gain:
    """Fill in one scope's figures."""
    sides = _by_place(routed)
    gain.requests = sum(sums.measured for sums in sides.values())
    gain.tokens = sum(sums.decode_tokens for sums in sides.values())
    gain.holdout = sum(control[place].measured for place in sides if place in control)
    empty = ActivitySums()
    pairs = {place: Pair(time_of(control.get(place, empty)), time_of(sums)) for place, sums in sides.items()}
    gain.time, covered = estimate(pairs)
    gain.compared = covered / gain.tokens if gain.tokens else None
    if all(accelerator_of(sums).n for sums in (*sides.values(), *(control[p] for p in sides if p in control))):
        shared = {p: Pair(accelerator_of(control.get(p, empty)), accelerator_of(s)) for p, s in sides.items()}
        gain.accelerator, _ = estimate(shared)
    else:
        gain.note = "accelerator time is not known of every request. "
    if gain.time.gain is None:
        gain.note = f"{gain.holdout} measured requests in the holdout, {NEEDED} of one task are needed. {gain.note}"
    gain.note = gain.note.strip()
    return gain


def estimate(pairs: Mapping[Place, Pair]) -> tuple[Saving, int]:
    """Return the saving, and the routed tokens that could be compared.

    Strata with fewer than five requests in the control are pooled within their task; what then still has fewer is left
    out on both sides.
    """
    usable = _pooled(pairs)
    covered = sum(pair.routed.tokens for pair in usable)
    actual = sum(pair.routed.units for pair in usable)
    if not covered or not actual:
        return Saving(), 0
    scales = [pair.routed.tokens / pair.control.tokens for pair in usable]
    expected = sum(scale * pair.control.units for scale, pair in zip(scales, usable, strict=True))
    # Relative variances: of the expected time through the control, and of the time taken; each with its requests.
    parts = [
        (scale**2 * pair.control.residual / expected**2, pair.control.n)
        for scale, pair in zip(scales, usable, strict=True)
    ] + [(pair.routed.residual / actual**2, pair.routed.n) for pair in usable]
    reach = _reach(parts)
    gain = expected / actual
    low, high = gain * math.exp(-reach), gain * math.exp(reach)
    seconds = actual * _UNIT_S
    saving = Saving(gain, low, high, expected * _UNIT_S, seconds)
    saving.saved_s, saving.saved_low_s, saving.saved_high_s = ((x - 1) * seconds for x in (gain, low, high))
    return saving, covered


def _reach(parts: Sequence[tuple[float, int]]) -> float:
    """Return half the interval on the log scale; degrees of freedom after Welch and Satterthwaite."""
    total = sum(variance for variance, _ in parts)
    if not total:
        return 0.0
    freedom = total**2 / sum(variance**2 / (n - 1) for variance, n in parts if n > 1)
    return student_t(max(NEEDED - 1, freedom)) * math.sqrt(total)


def _pooled(pairs: Mapping[Place, Pair]) -> list[Pair]:
    usable: list[Pair] = []
    rest: dict[str, Pair] = {}
    for place, pair in pairs.items():
        if not pair.routed.tokens:
            continue
        if pair.control.n >= NEEDED and pair.control.tokens:
            usable.append(pair)
            continue
        pool = rest.setdefault(place[0], Pair(Moments(), Moments()))
        pool.control.add(pair.control)
        pool.routed.add(pair.routed)
    return usable + [pair for pair in rest.values() if pair.control.n >= NEEDED and pair.control.tokens]
