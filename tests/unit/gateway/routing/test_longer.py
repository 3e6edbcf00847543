"""What a draft length that has hardly run is judged by, and how sure a mean over requests of unequal length is."""

from __future__ import annotations

import random

import pytest

from gateway.routing import build_snapshot
from gateway.routing.estimates import Evidence
from gateway.routing.longer import tokens_of
from gateway.types import Arm, RequestRecord
from tests.unit.gateway.routing.build import ARMS, NOW, buckets_of, costs, record, steps

KEY = ("engine", "code", "0", "512", 1)
TABLE = costs(0.02, 0.1)


def fixed(k: int, n: int, p: float = 0.6, tokens: int = 60, seed: int = 3) -> list[RequestRecord]:
    rng = random.Random(seed)
    return [record(Arm("engine", "ngram", k), *steps(rng, p, k, tokens)) for _ in range(n)]


def evidence(records: list[RequestRecord]) -> Evidence:
    snapshot = build_snapshot(buckets_of(records), {"engine": TABLE}, now=NOW, arms={"engine": ARMS})
    return snapshot.node(KEY).evidence


@pytest.mark.parametrize("p", [0.3, 0.6, 0.85])
def test_a_length_that_never_ran_is_foreseen_from_a_shorter_one(p: float) -> None:
    foreseen, real = evidence(fixed(2, 60, p)).arms[-1], evidence(fixed(8, 200, p, seed=4)).arms[-1]
    assert foreseen.key == real.key == ("ngram", 8)
    assert foreseen.requests == 0
    assert abs(foreseen.r - real.r) < 2.0 * foreseen.se
    assert foreseen.se < 0.3 * foreseen.r


def test_few_requests_at_the_longer_length_count_by_what_they_add() -> None:
    short = fixed(2, 60)
    both = evidence([*short, *fixed(8, 3, 0.95, seed=5)])
    foreseen, alone = evidence(short).arms[-1], evidence(fixed(8, 3, 0.95, seed=5)).arms[-1]
    assert alone.r < both.arms[-1].r < foreseen.r


def test_a_mean_that_hangs_on_one_long_request_is_unsure() -> None:
    alike = evidence(fixed(4, 6, tokens=100))
    unlike = evidence([*fixed(4, 1, tokens=500), *fixed(4, 5, tokens=20)])
    assert unlike.arms[2].requests == pytest.approx(alike.arms[2].requests)
    assert unlike.arms[2].se > 1.5 * alike.arms[2].se


def test_tokens_of_a_round() -> None:
    assert tokens_of([0.5, 0.5], 0) == (1.0, 1.0)
    assert tokens_of([0.5, 0.4], 3) == pytest.approx((1 + 0.5 + 0.2 + 0.08, 0.08)), "the last position goes on"
