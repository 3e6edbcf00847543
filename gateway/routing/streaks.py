"""What a round accepted in full says of the next round, within requests. Pure; called by `observe` and `flight`.

Drafts hold in stretches: after a full round the next one holds more often, even among requests that are alike. The odds
ratio between rounds that follow a full one and rounds that follow any other is taken within requests (Mantel and
Haenszel, J. Natl. Cancer Inst. 22, 1959), so that requests that differ as a whole do not look like stretches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.routing.stats import Layout, Vector

UNIT = 64
"""Units per trial, and per term of the odds ratio."""
PRIOR_TERMS = 2.0
"""Terms of an odds ratio of 1 that are assumed beforehand, on either side; other tasks come in with as much."""
POWER = 0.8
"""What is believed of an odds ratio: it is measured on the rounds that were tried, and stretches end."""
LEAST_ROUNDS = 8
"""Rounds of a request before it is counted: in short sequences a hit is followed by fewer hits, whatever the truth
(J. B. Miller, A. Sanjurjo, Econometrica 86, 2018)."""
PARTS = ("0", "1")
"""The first draft position, and the later ones together."""


@dataclass(frozen=True, slots=True)
class Streaks:
    """Factors on the odds of acceptance, at the first draft position and at the later ones."""

    after_full: tuple[float, float] = (1.0, 1.0)
    after_other: tuple[float, float] = (1.0, 1.0)


def streak_counters(emitted: Sequence[int], drafted: Sequence[int]) -> dict[str, int]:
    """Return one request's counters, none where its rounds are few.

    Its first round follows none, and what the last one missed was cut by the end.
    """
    if sum(map(bool, drafted)) < LEAST_ROUNDS:
        return {}
    table = [[[0, 0], [0, 0]], [[0, 0], [0, 0]]]  # [part][after a full round][accepted]
    full: bool | None = None
    last = len(emitted) - 1
    for step, (e, d) in enumerate(zip(emitted, drafted, strict=False)):
        if d <= 0:
            continue
        accepted = e - 1
        if full is not None:
            first, later = table[0][full], table[1][full]
            first[1] += accepted > 0
            later[1] += max(0, accepted - 1)
            if accepted < d and step != last:
                (later if accepted else first)[0] += 1
        full = accepted >= d
    counters: dict[str, int] = {}
    for part, ((miss, hit), (full_miss, full_hit)) in zip(PARTS, table, strict=True):
        after = full_miss + full_hit
        trials = miss + hit + after
        if trials:
            counters |= {f"xt{part}": UNIT * trials, f"xf{part}": UNIT * after}
            counters[f"xa{part}"] = round(UNIT * full_hit * miss / trials)
            counters[f"xb{part}"] = round(UNIT * full_miss * hit / trials)
    return counters


def streaks_of(own: Vector | None, wider: Vector | None, layout: Layout) -> Streaks:
    """Return the factors of a task; `wider` holds all tasks and lends where the task's own counts are thin."""
    full, other = [], []
    for part in PARTS:
        trials = after = 1.0
        ratio = 1.0
        for vector in (wider, own):
            if vector is None:
                continue
            t, f, a, b = (
                max(0.0, float(vector[layout.index[kind + part]])) / UNIT for kind in ("xt", "xf", "xa", "xb")
            )
            lean = PRIOR_TERMS * ratio**0.5
            ratio = (a + lean) / (b + PRIOR_TERMS**2 / lean)
            trials, after = trials + t, after + f
        share = min(1.0, after / trials)
        full.append(round(ratio ** (POWER * (1 - share)), 3))
        other.append(round(ratio ** (-POWER * share), 3))
    return Streaks((full[0], full[1]), (other[0], other[1]))
