"""The gain against the randomised holdout: right, its interval as wide as it says, strata weighed rightly."""

from __future__ import annotations

import numpy as np
import pytest

from gateway.db import ActivitySums, Stratum
from gateway.ops.holdout import gains
from gateway.types import Arm

PLAIN, SPEC = Arm("engine"), Arm("engine", "ngram", 4)


def sums(tokens, seconds, batch=1.0, known=True):
    """What the roll-ups keep of requests with so many decode tokens and seconds."""
    t, u = np.asarray(tokens, dtype=np.int64), np.asarray(seconds) * 1e4
    a = u / batch
    out = ActivitySums(
        requests=len(t), measured=len(t), decode_tokens=int(t.sum()), decode_us=round(float(u.sum()) * 100),
        tokens_tokens=int((t * t).sum()), tokens_time=round(float((t * u).sum())),
        time_time=round(float((u * u).sum())),
    )  # fmt: skip
    if known:
        out.accelerator_tokens, out.accelerator_us = out.decode_tokens, round(float(a.sum()) * 100)
        out.tokens_accelerator = round(float((t * a).sum()))
        out.accelerator_accelerator = round(float((a * a).sum()))
    return out


HELD, ROUTED, APART = -10_000, 10_000, 0
"""Draws: kept by a holdout of 1 %, not kept, and not drawn at all."""


def stratum(arm, draw, of, task="code", context="<512", key="anonymous"):
    return Stratum(task, "0", context, arm, key, draw, of)


def drawn(rng, n, per_token):
    """Requests of many lengths, whose time per token scatters between them."""
    tokens = rng.integers(20, 300, n)
    return tokens, tokens * per_token * rng.lognormal(0, 0.3, n)


def test_a_gain_without_noise_is_exact():
    held = stratum(PLAIN, HELD, sums([10] * 6, [0.2] * 6))
    routed = stratum(SPEC, ROUTED, sums([20] * 10, [0.2] * 10, batch=2.0))
    total, tasks, applications = gains([held, routed], {"anonymous": "website"})
    assert (total.time.gain, total.time.low, total.time.high) == pytest.approx((2, 2, 2))
    assert (total.time.expected_s, total.time.actual_s, total.time.saved_s) == pytest.approx((4, 2, 2))
    assert (total.accelerator.gain, total.accelerator.saved_s) == pytest.approx((4, 3))
    assert (tasks[0].name, applications[0].name, total.holdout, total.requests) == ("code", "website", 6, 10)


def test_the_interval_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(7)
    truth, covered, runs = 1.25, 0, 400
    for _ in range(runs):
        held = stratum(PLAIN, HELD, sums(*drawn(rng, 80, 0.02)))
        routed = stratum(SPEC, ROUTED, sums(*drawn(rng, 400, 0.02 / truth)))
        time = gains([held, routed], {})[0].time
        covered += time.low <= truth <= time.high
    assert 0.92 <= covered / runs <= 0.98  # 95 % ± 2.8 standard errors


def test_strata_are_weighed_by_what_was_routed_not_by_what_was_held():
    """Long contexts are four times as slow and half the traffic, but nearly all of the holdout."""
    parts = [
        stratum(PLAIN, HELD, sums([10] * 5, [0.1] * 5), context="<512"),
        stratum(PLAIN, HELD, sums([10] * 95, [0.4] * 95), context="<8k"),
        stratum(SPEC, ROUTED, sums([10] * 50, [0.1] * 50), context="<512"),
        stratum(SPEC, ROUTED, sums([10] * 50, [0.4] * 50), context="<8k"),
    ]
    total, _, _ = gains(parts, {})
    assert total.time.gain == pytest.approx(1.0)
    assert total.compared == 1


def test_thin_strata_are_pooled_within_their_task_and_what_stays_thin_is_left_out():
    parts = [
        stratum(PLAIN, HELD, sums([10] * 3, [0.2] * 3), context="<512"),
        stratum(PLAIN, HELD, sums([10] * 3, [0.2] * 3), context="<8k"),
        stratum(PLAIN, HELD, sums([10] * 2, [0.2] * 2), task="math"),
        stratum(SPEC, ROUTED, sums([10] * 30, [0.1] * 30), context="<512"),
        stratum(SPEC, ROUTED, sums([10] * 30, [0.1] * 30), context="<8k"),
        stratum(SPEC, ROUTED, sums([10] * 60, [0.4] * 60), task="math"),
    ]
    total, tasks, _ = gains(parts, {})
    assert total.time.gain == pytest.approx(2.0)
    assert total.compared == pytest.approx(0.5)
    code, math = tasks
    assert (code.time.gain, math.time.gain) == (pytest.approx(2.0), None)
    assert "2 measured requests in the holdout" in math.note


@pytest.mark.parametrize("arm", [PLAIN, SPEC])
def test_what_could_not_be_drawn_is_on_neither_side(arm):
    parts = [
        stratum(PLAIN, HELD, sums([10] * 9, [0.2] * 9)),
        stratum(SPEC, ROUTED, sums([10] * 9, [0.1] * 9)),
        stratum(arm, APART, sums([10] * 900, [9.0] * 900)),
        stratum(SPEC, HELD, sums([10] * 900, [9.0] * 900)),
    ]
    assert gains(parts, {})[0].time.gain == pytest.approx(2.0)


def test_rules_that_hold_different_shares_are_compared_with_their_own():
    """A slow rule holds half of its requests, a fast one hardly any: together the held would look slow."""
    parts = [
        stratum(PLAIN, -500_000, sums([10] * 90, [0.4] * 90)),
        stratum(SPEC, 500_000, sums([10] * 90, [0.4] * 90)),
        stratum(PLAIN, -10_000, sums([10] * 10, [0.1] * 10)),
        stratum(SPEC, 10_000, sums([10] * 990, [0.1] * 990)),
    ]
    assert gains(parts, {})[0].time.gain == pytest.approx(1.0)


def test_accelerator_time_is_unknown_where_one_backend_does_not_report_it():
    parts = [
        stratum(PLAIN, HELD, sums([10] * 9, [0.2] * 9)),
        stratum(SPEC, ROUTED, sums([10] * 9, [0.1] * 9, known=False)),
    ]
    total = gains(parts, {})[0]
    assert total.time.gain == pytest.approx(2.0)
    assert total.accelerator.gain is None
    assert "accelerator time is not known" in total.note


def test_an_application_is_compared_with_everybodys_holdout_of_its_tasks():
    parts = [
        stratum(PLAIN, HELD, sums([10] * 9, [0.2] * 9), key="a"),
        stratum(SPEC, ROUTED, sums([10] * 9, [0.1] * 9), key="a"),
        stratum(SPEC, ROUTED, sums([10] * 90, [0.4] * 90), key="b"),
    ]
    _, _, (b, a) = gains(parts, {})
    assert (a.name, a.time.gain, b.name, b.time.gain) == ("a", pytest.approx(2.0), "b", pytest.approx(0.5))
