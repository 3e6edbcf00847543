"""The line over steps with unlike rows: it finds a known truth, outliers and the profile give way, it never falls."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.mixed_costs import MixedCosts, StepLine, fit_line

KEY = (8, 0)


def test_exact_points_give_their_line() -> None:
    line = fit_line([(drafted, 1.1 + 0.03 * drafted) for drafted in (2, 4, 8, 16)])
    assert line is not None
    assert (line.fixed, line.per_token) == pytest.approx((0.1, 0.03))
    assert line.at(0) == 0.0
    assert line.at(10) == pytest.approx(0.4)


def test_interrupted_steps_move_it_little() -> None:
    """Noise of a tenth, and one step in eight takes three times as long."""
    rng = random.Random(4)
    points = []
    for at in range(64):
        drafted = rng.choice((2, 4, 6, 8, 12))
        steps = (1.1 + 0.03 * drafted) * rng.uniform(0.9, 1.1)
        points.append((drafted, steps * (3.0 if at % 8 == 0 else 1.0)))
    line = fit_line(points)
    assert line is not None
    for drafted in (2, 6, 12):
        assert 1.0 + line.at(drafted) == pytest.approx(1.1 + 0.03 * drafted, rel=0.06)


@given(st.lists(st.tuples(st.integers(1, 60), st.floats(0.3, 9.0)), min_size=1, max_size=20))
def test_no_step_costs_less_than_a_plain_one_or_than_one_that_drafts_less(points: list[tuple[int, float]]) -> None:
    line = fit_line(points)
    assert line is not None
    assert line.fixed >= 0.0
    assert line.per_token >= 0.0


def test_nothing_measured_gives_no_line() -> None:
    assert fit_line([]) is None
    assert MixedCosts().line(KEY) is None


def test_one_kind_of_step_alone_gives_a_line_through_it() -> None:
    assert fit_line([(4, 1.2)] * 3) == StepLine(0.0, pytest.approx(0.05))


def test_what_is_served_outweighs_the_profile() -> None:
    costs = MixedCosts()
    for drafted in (2, 4, 8, 16):
        for _ in range(4):
            costs.profile(KEY, drafted, 1.0 + 0.02 * drafted)
    profiled = costs.line(KEY)
    assert profiled is not None
    assert profiled.at(8) == pytest.approx(0.16)
    for _ in range(24):
        costs.serve(KEY, 8, 1.3)
    served = costs.line(KEY)
    assert served is not None
    assert served.at(8) == pytest.approx(0.3, abs=0.02)
    assert served.at(16) > served.at(8)
    assert [(drafted, n) for _, drafted, _, n in costs.medians()] == [(2, 4), (4, 4), (8, 28), (16, 4)]
