"""The p99 guard: it hits what is slow, spares what is not, and lets an arm come back."""

from __future__ import annotations

import numpy as np
import pytest

from gateway.histogram import LatencyCell, LogHistogram
from gateway.policy.schema import P99
from gateway.routing.guard import Guard, Place, judge
from gateway.types import Arm, CellKey
from tests.unit.gateway.routing.build import backend, learned, rule
from tests.unit.gateway.routing.test_decide import ask

RULE = P99(metric="tpot", window=60.0, max_ratio_to_plain=1.1)
PLACE: Place = ("engine", "ngram", 8, "code", "512", 1)


class History:
    """Latencies of plain and of one arm, growing by the minute and merged from the start, as the database has them."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.plain, self.arm = LogHistogram(), LogHistogram()

    def minute(self, ratio: float, n: int, minute: int) -> list[LatencyCell]:
        for histogram, factor in ((self.plain, 1.0), (self.arm, ratio)):
            for value in factor * 0.01 * self.rng.lognormal(0, 0.3, n):
                histogram.add(float(value))
        key = CellKey("engine", "e1", "ngram", 8, "code", "0", "512", 1)
        plain = CellKey("engine", "e1", "plain", 0, "chat", "0", "512", 1)
        return [
            LatencyCell(key, "tpot", 0, LogHistogram(self.arm.counts()), minute),
            LatencyCell(plain, "tpot", 0, LogHistogram(self.plain.counts()), minute),
        ]


def statuses(ratio: float, n: int, minutes: int, seed: int) -> list[str]:
    guard, history = Guard({RULE}), History(seed)
    found = []
    for minute in range(minutes):
        guard.advance(history.minute(ratio, n, minute + 1), 60.0 * minute)
        found.append(guard.standings[RULE, PLACE].status)
    return found


def test_twice_as_slow_is_ineligible_after_two_windows() -> None:
    assert statuses(2.0, 1000, 4, 1)[:2] == ["suspect", "ineligible"]


def false_ineligibility(windows: int, n: int, seeds: range) -> int:
    return sum(s == "ineligible" for seed in seeds for s in statuses(1.0, n, windows, seed))


def test_equal_arms_are_spared() -> None:
    assert false_ineligibility(50, 400, range(2)) == 0


@pytest.mark.verify
def test_equal_arms_are_spared_in_999_of_1000_windows() -> None:
    assert false_ineligibility(50, 300, range(40)) + false_ineligibility(50, 3000, range(10)) <= 2


def test_few_requests_decide_nothing() -> None:
    assert set(statuses(5.0, 20, 10, 1)) == {"no_data"}
    assert judge(RULE, LogHistogram.of([0.1] * 298), LogHistogram.of([0.01] * 999))[0] == "no_data"
    assert judge(RULE, LogHistogram.of([0.1] * 299), LogHistogram.of([0.01] * 10))[0] == "no_data"


def test_an_absolute_budget_needs_no_plain_path() -> None:
    budget = P99(metric="tpot", budget=0.08)
    verdict, text = judge(budget, LogHistogram.of([0.1] * 400), LogHistogram())
    assert verdict == "violated"
    assert "> budget 80.0 ms (400 requests)" in text
    assert judge(budget, LogHistogram.of([0.01] * 400), LogHistogram())[0] == "ok"


def test_each_rule_is_judged_by_its_own_metric_and_window() -> None:
    """An arm that is slow by TPOT is none by TTFT, of which nothing is known; ten minutes take that long."""
    other = P99(metric="ttft", window=60.0, max_ratio_to_plain=1.1)
    patient = P99(metric="tpot", window=600.0, max_ratio_to_plain=1.1)
    guard, history = Guard({RULE, other, patient}), History(1)
    for minute in range(4):
        guard.advance(history.minute(2.0, 1000, minute + 1), 60.0 * minute)
    assert guard.standings[RULE, PLACE].status == "ineligible"
    assert (other, PLACE) not in guard.standings
    assert guard.standings[patient, PLACE].status == "suspect"


def test_cool_down_then_trial_then_free_again_or_out_for_longer() -> None:
    guard, history = Guard({RULE}), History(5)
    for minute in range(2):
        guard.advance(history.minute(2.0, 1000, minute + 1), 60.0 * minute)
    standing = guard.standings[RULE, PLACE]
    assert (standing.status, standing.until) == ("ineligible", 120.0)
    guard.advance(history.minute(1.0, 0, 3), 130.0)
    assert standing.status == "trial"
    guard.advance(history.minute(1.0, 100, 4), 140.0)
    assert standing.status == "trial"
    guard.advance(history.minute(2.0, 1000, 5), 150.0)
    assert (standing.status, standing.until) == ("ineligible", 150.0 + 120.0)
    guard.advance(history.minute(1.0, 0, 6), 280.0)
    guard.advance(history.minute(1.0, 1000, 7), 290.0)
    assert standing.status == "ok"


def test_decide_takes_a_smaller_k_before_plain() -> None:
    snapshot = learned(0.9)
    guarded = rule(p99=RULE)
    assert ask(snapshot, rule=guarded).arm == Arm("engine", "ngram", 8)
    assert snapshot.guard.wanted == {RULE}
    history = History(6)
    for minute in range(2):
        snapshot.guard.advance(history.minute(2.0, 1000, minute + 1), 60.0 * minute)
    decision = ask(snapshot, rule=guarded)
    assert (decision.arm, decision.state) == (Arm("engine", "ngram", 4), "p99")
    assert "p99 guard, engine/ngram-k8: p99 tpot" in decision.reason
    only = ask(snapshot, rule=guarded, backends={"engine": backend(arms=(Arm("engine"), Arm("engine", "ngram", 8)))})
    assert only.arm == Arm("engine")
    assert ask(snapshot, rule=rule()).arm == Arm("engine", "ngram", 8)
