"""Waste, tails, full misses against spikes, and advice: each says what the numbers say, and nothing without them."""

from __future__ import annotations

import pytest

from gateway.db import ActivitySums, CellActivity, Tail
from gateway.histogram import LogHistogram
from gateway.ops.advice import advise
from gateway.ops.findings import spikes, tails, waste
from gateway.ops.model import TaskFigures
from gateway.ops.study_model import Gain, Saving
from gateway.types import Arm, CellKey

PLAIN, SPEC = Arm("engine"), Arm("engine", "ngram", 4)


def cell(arm, task="code", load=1, **sums):
    histogram = sums.pop("histogram", None)
    made = ActivitySums(**sums)
    if histogram:
        made.accepted_histogram[: len(histogram)] = histogram
    return CellActivity(CellKey(arm.backend, "e", arm.method, arm.k, task, "0", "512", load), made)


def tail(arm, values, task="code", load=1, metric="tpot"):
    return Tail(task, arm, load, metric, LogHistogram.of(values))


def test_waste_is_the_refused_share_of_drafting_and_of_checking_beyond_a_plain_step():
    plain = cell(PLAIN, undrafted=100, plain_us=1_000_000)  # 10 ms a step
    spec = cell(
        SPEC, rounds=100, drafted=400, accepted=100, draft_us=200_000, verify_us=1_400_000, accelerator_us=400_000
    )
    (row,) = waste([plain, spec])
    assert (row.drafted, row.rejected) == (400, 300)
    assert row.wasted_s == pytest.approx(0.75 * (0.2 + 0.4))
    assert row.wasted_accelerator_s == pytest.approx(0.45 / 4)  # four sequences shared each step
    assert row.share == pytest.approx(0.45 / 1.6)
    assert waste([spec])[0].wasted_accelerator_s is None  # no plain step to compare with


def test_a_p99_needs_299_values_and_a_verdict_needs_bounds_apart():
    flat = [0.01] * 400
    (row,) = tails([tail(PLAIN, flat), tail(SPEC, [0.02] * 400)])
    assert row.worse is True
    assert row.plain_ms == pytest.approx(10, rel=0.01)
    assert tails([tail(PLAIN, flat), tail(SPEC, flat)])[0].worse is None
    assert tails([tail(PLAIN, flat), tail(SPEC, [0.005] * 400)])[0].worse is False
    thin = tails([tail(PLAIN, flat), tail(SPEC, [0.02] * 298)])[0]
    assert (thin.spec_ms, thin.worse) == (None, None)


def looks(ratio_of):
    """Nine tasks that miss more and more, with a tail that depends on it as said."""
    cells, parts = [], []
    for at in range(9):
        task = f"t{at}"
        cells.append(cell(SPEC, task=task, rounds=1000, zero_rounds=100 * at))
        parts += [tail(PLAIN, [0.01] * 300, task=task), tail(SPEC, [0.01 * ratio_of(at)] * 300, task=task)]
    return spikes(cells, parts)


def test_full_misses_are_blamed_only_where_the_tail_grows_with_them():
    grows, shrinks = looks(lambda at: 1 + 0.1 * at), looks(lambda at: 2 - 0.1 * at)
    assert (grows.verdict, shrinks.verdict) == ("yes", "no")
    assert grows.rho == pytest.approx(1)
    assert grows.points[0].ratio == pytest.approx(1.8, rel=0.02)
    assert looks(lambda at: [1, 3, 2, 1, 3, 2, 1, 3, 2][at]).verdict == "unclear"
    assert looks(lambda _: 1).verdict == "no_data"  # all alike: nothing to rank
    assert spikes([], []).verdict == "no_data"


def saving(gain, low, high):
    return Saving(gain, low, high, saved_s=-1.0)


def test_advice_says_what_to_switch_off_which_length_to_try_and_what_to_distil():
    plain = cell(PLAIN, undrafted=1000, plain_us=10_000_000)
    spec = cell(
        SPEC, rounds=1000, drafted=4000, accepted=1000, zero_rounds=0, draft_us=400_000, verify_us=16_000_000,
        histogram=[0, 1000, 0, 0, 0],
    )  # fmt: skip
    losing = TaskFigures("chat", requests_spec=50, gain=0.8, gain_low=0.7, gain_high=0.9)
    code = TaskFigures("code", requests_spec=50, rounds=1000, a=2.0, z=0.0, break_even=1.64, gain=1.2)
    weak = TaskFigures("creative", requests_spec=50, rounds=500, a=1.1, z=0.9, break_even=1.4)
    found = advise([losing, code, weak], [Gain("task", "code", time=saving(1.2, 1.1, 1.3))], [], [plain, spec])
    told = {(advice.kind, advice.task): advice for advice in found}
    assert set(told) == {("switch_off", "chat"), ("try_k", "code"), ("distil", "creative")}
    # Each round accepts one of four: with k = 1 as many tokens for a quarter of the extra cost.
    assert "Try k = 1" in told["try_k", "code"].text
    assert "1.72x instead of 1.22x" in told["try_k", "code"].because
    held = advise([code], [Gain("task", "code", time=saving(0.8, 0.7, 0.9))], [], [plain, spec])
    assert [(advice.kind, advice.query) for advice in held] == [("switch_off", "sums")]


def test_too_small_a_holdout_is_said():
    (advice,) = advise([], [Gain("task", "code", requests=500)], [], [])
    assert advice.kind == "holdout"
    assert "code" in advice.text
