"""What the step before says of a round, within requests. Pure; called by `observe` and `flight`.

Drafts hold in stretches: after a full round the next one holds more often, even among requests that are alike, and
after a step without a draft a new match has to prove itself. The odds ratios between rounds that follow a full one and
all others, and among these between rounds after such a gap and rounds after a draft that failed, are taken within
requests (Mantel and Haenszel, J. Natl. Cancer Inst. 22, 1959), so that requests that differ as a whole do not look like
stretches.
"""

from __future__ import annotations

import math
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
    after_gap: tuple[float, float] = (1.0, 1.0)


OTHER, GAP, FULL = 0, 1, 2
"""What came before a round: a round that was not accepted in full, a step without a draft, a round that was."""


def streak_counters(emitted: Sequence[int], drafted: Sequence[int]) -> dict[str, int]:
    """Return one request's counters, none where its rounds are few.

    Its first round follows none, and what the last one missed was cut by the end.
    """
    if sum(map(bool, drafted)) < LEAST_ROUNDS:
        return {}
    table = [[[0, 0] for _ in range(3)] for _ in PARTS]  # [part][what came before][accepted]
    before: int | None = None
    last = len(emitted) - 1
    for step, (e, d) in enumerate(zip(emitted, drafted, strict=False)):
        if d <= 0:
            before = before if before is None else GAP
            continue
        accepted = e - 1
        if before is not None:
            first, later = table[0][before], table[1][before]
            first[1] += accepted > 0
            later[1] += max(0, accepted - 1)
            if accepted < d and step != last:
                (later if accepted else first)[0] += 1
        before = FULL if accepted >= d else OTHER
    counters: dict[str, int] = {}
    for part, ((miss, hit), (gap_miss, gap_hit), (full_miss, full_hit)) in zip(PARTS, table, strict=True):
        rest = miss + hit + gap_miss + gap_hit
        trials = rest + full_miss + full_hit
        if trials:
            counters |= {f"xt{part}": UNIT * trials, f"xf{part}": UNIT * (trials - rest)}
            counters |= {f"xa{part}": round(UNIT * full_hit * (miss + gap_miss) / trials)}
            counters |= {f"xb{part}": round(UNIT * full_miss * (hit + gap_hit) / trials)}
        if rest:
            counters |= {f"xg{part}": UNIT * (gap_miss + gap_hit), f"xc{part}": round(UNIT * gap_hit * miss / rest)}
            counters |= {f"xd{part}": round(UNIT * gap_miss * hit / rest)}
    return counters


def streaks_of(own: Vector | None, wider: Vector | None, layout: Layout) -> Streaks:
    """Return the factors of a task; `wider` holds all tasks and lends where the task's own counts are thin."""
    factors = [_factors([vector for vector in (wider, own) if vector is not None], layout, part) for part in PARTS]
    (full, other, gap), (full_later, other_later, gap_later) = factors
    return Streaks((full, full_later), (other, other_later), (gap, gap_later))


def _factors(vectors: Sequence[Vector], layout: Layout, part: str) -> tuple[float, float, float]:
    """Return the factors after a full round, after any other and after a gap, whose weighted mean is 1 in log odds."""
    trials, full, gaps = 1.0, 1.0, 0.0
    ratio = gap_ratio = 1.0
    for vector in vectors:
        t, f, a, b, g, c, d = (
            max(0.0, float(vector[layout.index[kind + part]])) / UNIT
            for kind in ("xt", "xf", "xa", "xb", "xg", "xc", "xd")
        )
        ratio, gap_ratio = _pooled(ratio, a, b), _pooled(gap_ratio, c, d)
        trials, full, gaps = trials + t, full + f, gaps + g
    share = min(1.0, full / trials)
    gap_share = min(1.0, gaps / max(1.0, trials - full))
    rest = ratio ** (-POWER * share)
    return (
        round(ratio ** (POWER * (1 - share)), 3),
        round(rest * gap_ratio ** (-POWER * gap_share), 3),
        round(rest * gap_ratio ** (POWER * (1 - gap_share)), 3),
    )


def _pooled(before: float, up: float, down: float) -> float:
    """Return an odds ratio with as much of what was believed before as `PRIOR_TERMS` say."""
    lean = PRIOR_TERMS * math.sqrt(before)
    return (up + lean) / (down + PRIOR_TERMS**2 / lean)
