"""The report's arithmetic against cases worked out by hand, and its interval against the spread that it claims."""

from __future__ import annotations

import math
import random

import pytest

from gateway.db import ActivitySums
from gateway.histogram import LogHistogram
from gateway.ops.costs import Costed
from gateway.ops.figures import add_paths, gain_of, relative_error, student_t, task_figures
from gateway.ops.model import MIN_P99, PathSums


def measured(tokens_and_us, **more):
    """Sums over requests of (tokens, time in µs) each, as the roll-ups keep them (second moments in 100 µs)."""
    sums = ActivitySums(requests=len(tokens_and_us), measured=len(tokens_and_us), **more)
    for tokens, us in tokens_and_us:
        units = us // 100
        sums.decode_tokens += tokens
        sums.decode_us += us
        sums.tokens_tokens += tokens * tokens
        sums.tokens_time += tokens * units
        sums.time_time += units * units
    return sums


SPEC = ActivitySums(requests=3, rounds=12, accepted=21, zero_rounds=3, undrafted=6)
COSTED = Costed(12_000, 300_000, 120_000, rounds=12, expected_us=39 * 20_000, expected_rounds_us=12 * 20_000)


def test_figures_by_hand():
    plain = PathSums(ActivitySums(requests=2, completion_tokens=9))
    figures = task_figures("code", plain, PathSums(SPEC, costed=COSTED))
    assert (figures.requests, figures.requests_plain, figures.requests_spec) == (5, 2, 3)
    assert figures.a == pytest.approx(1 + 21 / 12)
    assert figures.z == pytest.approx(0.25)
    assert figures.alpha == pytest.approx(0.05)
    assert figures.beta == pytest.approx(0.25)
    assert figures.break_even == pytest.approx(1.3)
    assert figures.gain == pytest.approx(780 / 432)
    assert figures.drafted_share == pytest.approx(12 / 18)
    assert figures.tokens == 9


def test_without_costs_the_gain_is_the_ratio_of_what_clients_saw():
    plain, spec = measured([(40, 1_600_000)] * 9), measured([(40, 800_000)] * 9, rounds=100, accepted=150)
    figures = task_figures("code", PathSums(plain), PathSums(spec))
    assert figures.gain == pytest.approx(2.0)
    assert figures.break_even == pytest.approx(2.5 / 2)
    assert (figures.alpha, figures.beta) == (None, None)


def test_nothing_known_stays_unknown():
    figures = task_figures("code", PathSums(ActivitySums(requests=4)), PathSums())
    assert (figures.a, figures.z, figures.gain, figures.break_even, figures.tpot_p50_plain_ms) == (None,) * 5
    only_spec = task_figures("code", PathSums(), PathSums(measured([(40, 800_000)] * 9)))
    assert only_spec.gain is None


def test_p99_only_from_299_requests():
    few = LogHistogram.of([0.02] * (MIN_P99 - 1))
    assert task_figures("t", PathSums(tpot=few), PathSums()).tpot_p99_plain_ms is None
    few.add(0.02)
    figures = task_figures("t", PathSums(tpot=few), PathSums(tpot=LogHistogram.of([0.01])))
    assert figures.tpot_p99_plain_ms == pytest.approx(20, rel=0.01)
    assert figures.tpot_p50_spec_ms == pytest.approx(10, rel=0.01)
    assert figures.tpot_p99_spec_ms is None
    assert figures.tpot_max_spec_ms == pytest.approx(10, rel=0.01)


def test_interval_needs_five_requests_and_is_tight_without_spread():
    assert relative_error(measured([(40, 800_000)] * 4)) is None
    assert relative_error(measured([(40, 800_000)] * 5)) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(("freedom", "quantile"), [(4, 2.776), (5, 2.571), (10, 2.228), (30, 2.042), (1000, 1.962)])
def test_students_t(freedom, quantile):
    assert student_t(freedom) == pytest.approx(quantile, rel=0.02)


@pytest.mark.parametrize("requests_each", [6, 60])
def test_interval_covers_the_truth_about_as_often_as_it_says(requests_each):
    """400 experiments; at a true coverage of 92 % or more, fewer than 345 hits have odds below 1e-3."""
    draw = random.Random(7)
    truth, hits = 1.5, 0
    for _ in range(400):
        requests = []
        for _ in range(requests_each):
            tokens = draw.randint(8, 200)
            requests.append((tokens, int(tokens * 20_000 * draw.lognormvariate(0, 0.3) / truth)))
        spec = measured(requests)
        mean_factor = math.exp(0.3**2 / 2)
        costed = Costed(verify_us=spec.decode_us, expected_us=spec.decode_tokens * 20_000 * mean_factor)
        _gain, low, high = gain_of(ActivitySums(), spec, costed)
        hits += low <= truth <= high
    assert 345 <= hits < 400


def test_paths_add_up_and_histograms_merge():
    one = PathSums(ActivitySums(requests=1, rounds=2), LogHistogram.of([0.01]), LogHistogram.of([0.1]), costed=COSTED)
    two = PathSums(ActivitySums(requests=2, rounds=3), LogHistogram.of([0.02]), LogHistogram.of([0.2]))
    total = add_paths([one, two])
    assert (total.sums.requests, total.sums.rounds) == (3, 5)
    assert total.tpot == LogHistogram.of([0.01, 0.02])
    assert total.ttft == LogHistogram.of([0.1, 0.2])
    assert total.costed == COSTED
    assert one.sums.requests == 1
