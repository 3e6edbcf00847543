"""The zero-accept alarm shows where the rule's threshold is passed, and changes no decision."""

from __future__ import annotations

import pytest

from gateway.routing import decide, summarize
from gateway.routing.alarm import alarming
from gateway.routing.estimates import Estimate
from gateway.types import Decision
from tests.unit.gateway.routing.build import backend, costs, learned, request, rule, task


def decided(p: float, threshold: float | None, *, adaptive: bool = False) -> tuple[Decision, bool]:
    snapshot = learned(p, table=costs(0.0, 0.0))
    state = {"engine": backend(adaptive=adaptive)}
    asked = rule(zero_accept_alarm=threshold)
    decision = decide(request(), task(), asked, snapshot, state, prompt_tokens=50, draw=0.999, policy="p")
    (row,) = summarize(snapshot, ["code"])
    return decision, row.zero_accept_alarm


@pytest.mark.parametrize("adaptive", [True, False])
@pytest.mark.parametrize(("p", "threshold", "alarm"), [(0.3, 0.5, True), (0.3, 0.9, False), (0.9, 0.5, False)])
def test_it_is_raised_above_the_threshold_of_the_rule(p: float, threshold: float, alarm: bool, adaptive: bool) -> None:
    decision, row = decided(p, threshold, adaptive=adaptive)
    assert (decision.numbers["zero_accept_alarm"], row) == (alarm, alarm)
    assert decision.numbers["z"] == pytest.approx(1 - p, abs=0.06)


def test_it_changes_no_decision() -> None:
    with_alarm, without = decided(0.3, 0.5)[0], decided(0.3, None)[0]
    assert (with_alarm.arm, with_alarm.state, with_alarm.reason) == (without.arm, without.state, without.reason)
    assert with_alarm.arm.k > 0
    assert without.numbers["zero_accept_alarm"] is None


def test_a_few_rounds_raise_nothing() -> None:
    few = Estimate(("ngram", 4), requests=6, rounds=19, z=1.0)
    assert alarming(few, 0.8) is False
    few.rounds = 40
    assert alarming(few, 0.8) is True
    few.z = 0.85  # 0.85 of 40 rounds may well be 0.8 in truth
    assert alarming(few, 0.8) is False
