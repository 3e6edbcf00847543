"""Pools that report no costs: compared by measured time per token, across backends; nothing known is said to be so."""

from __future__ import annotations

import random

import pytest

from gateway.routing import Snapshot, build_snapshot, summarize
from gateway.types import Arm, Decision
from tests.unit.gateway.routing.build import NOW, backend, buckets_of, learned, record, request, rule
from tests.unit.gateway.routing.test_decide import ask

PLAIN, FAST = Arm("plain"), Arm("spec", "eagle", 4)
POOLS = {
    "plain": backend("plain", (PLAIN,), kind="vllm", per_request_switch=False),
    "spec": backend("spec", (FAST,), kind="vllm", per_request_switch=False),
}
ARMS = {"plain": (PLAIN,), "spec": (FAST,)}


def measured(ratio: float, n: int = 40) -> Snapshot:
    """n requests on each pool, 10 % noise, the speculative one taking `ratio` of plain's time per token."""
    rng = random.Random(3)
    records = []
    for _ in range(n):
        noise = rng.lognormvariate(0, 0.1)
        records.append(record(PLAIN, [1] * 50, [0] * 50, tpot_s=0.01 * noise))
        records.append(record(FAST, [3] * 20, [4] * 20, tpot_s=0.01 * ratio * rng.lognormvariate(0, 0.1)))
    for made in records:
        made.decision.load = 4
    previous = build_snapshot(buckets_of(records), {}, now=NOW, arms=ARMS)
    return build_snapshot(buckets_of(records), {}, now=NOW, arms=ARMS, previous=previous)


def choose(snapshot: Snapshot, draw: float = 0.999) -> Decision:
    return ask(snapshot, draw, backends=POOLS)


@pytest.mark.parametrize(("ratio", "arm"), [(0.6, FAST), (1.4, PLAIN)])
def test_the_faster_pool_is_taken(ratio: float, arm: Arm) -> None:
    decision = choose(measured(ratio))
    assert decision.arm == arm
    assert decision.speculation is None
    probe = choose(measured(ratio), draw=0.0001)
    assert (probe.state, probe.arm) == ("probe", PLAIN if arm == FAST else FAST)


def test_only_the_sum_of_the_costs_is_shown() -> None:
    row = next(row for row in summarize(measured(0.6), ["code"]) if row.backend == "spec")
    eagle = next(arm for arm in row.arms if arm.path == "speculative")
    assert (eagle.alpha, eagle.beta) == (None, None)
    assert eagle.alpha_plus_beta == pytest.approx(3 * 0.6 - 1, abs=0.1)
    assert eagle.gain == pytest.approx(1 / 0.6, rel=0.1)
    assert "a 3.00 > 1 + 0." in row.reason


def test_without_any_data_pools_fall_back_to_plain_and_probe() -> None:
    snapshot = build_snapshot([], {}, now=NOW, arms=ARMS)
    assert (choose(snapshot).arm, choose(snapshot).state) == (PLAIN, "no_data")
    assert choose(snapshot, draw=0.01).arm == FAST


def test_a_parameter_that_a_pool_gets_wrong_sends_the_request_to_plain() -> None:
    asked = request(body={"model": "m", "messages": [], "min_p": 0.1})
    decision = ask(measured(0.6), request=asked, backends=POOLS, rule=rule())
    assert decision.arm == PLAIN
    assert decision.vetoes == ["spec/eagle-k4: min_p is not exact there"]
    assert "veto spec/eagle-k4: min_p is not exact there" in decision.reason


def test_in_flight_control_goes_out_with_costs_prior_and_strength() -> None:
    state = {"engine": backend(adaptive=True)}
    decision = ask(learned(0.9), backends=state)
    assert decision.arm == Arm("engine", "ngram", 8)
    assert decision.speculation is not None
    adaptive = decision.speculation.adaptive
    assert adaptive is not None
    assert [k for k, _ in adaptive.break_even] == [2, 4, 8]
    assert adaptive.break_even[0][1] == pytest.approx(1.2)
    assert len(adaptive.prior) == 8
    assert adaptive.prior[0] == pytest.approx(0.9, abs=0.03)
    assert adaptive.strength > 20
    forced = ask(learned(0.9), backends=state, request=request(arm_wish=Arm("engine", "ngram", 4)))
    assert forced.speculation is not None
    assert forced.speculation.adaptive is None


def test_the_summary_follows_in_flight_control() -> None:
    snapshot = learned(0.9)
    ask(snapshot, backends={"engine": backend(adaptive=True)})
    (row,) = summarize(snapshot, ["code"])
    assert (row.arm, row.state) == ("engine/ngram-k8", "ok")
