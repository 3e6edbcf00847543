"""A quiet start under the policy that ships: costs are profiled, nothing is known of acceptance yet."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from gateway.policy import load_policy
from gateway.policy.schema import Rule
from gateway.routing import Bucket, Snapshot, build_snapshot, decide, observe, summarize
from gateway.types import PLAIN, Arm, Classification, Decision, RequestRecord
from tests.unit.gateway.routing.build import ARMS, NOW, backend, costs, record, request

POLICY = Path(__file__).resolve().parents[4] / "policies" / "default.yaml"
ACCEPTANCE = {"structured": 0.8, "code": 0.7, "summarization": 0.75, "math": 0.4, "chat": 0.3, "creative": 0.02}
UNDRAFTED = {"structured": 0.3, "code": 0.4, "summarization": 0.3, "math": 0.6, "chat": 0.6, "creative": 0.5}
"""Share of steps for which an n-gram drafter has nothing to propose."""
COSTS = costs(0.0, 0.15)
OUTSIDE = 0.999


@pytest.fixture(scope="module")
def rule() -> Rule:
    return load_policy(POLICY).rules[0]


def answered(rng: random.Random, name: str, decision: Decision, at: float, load: int = 1) -> RequestRecord:
    """What a request of a task does under a decision; in flight, four rounds without a hit stop the draft."""
    emitted: list[int] = []
    drafted: list[int] = []
    misses, arm = 0, decision.arm
    controlled = decision.speculation is not None and decision.speculation.adaptive is not None
    while sum(emitted) < 48:
        k = arm.k if rng.random() >= UNDRAFTED[name] and not (controlled and misses >= 4) else 0
        accepted = 0
        while accepted < k and rng.random() < ACCEPTANCE[name]:
            accepted += 1
        misses = 0 if accepted else misses + bool(k)
        emitted.append(accepted + 1)
        drafted.append(k)
    decision.load = load
    return record(arm, emitted, drafted, task=name, at=at, decision=decision)


class Gateway:
    """The decision and what it learns, without the network."""

    def __init__(self, rule: Rule) -> None:
        self.rule, self.now, self.rng = rule, NOW, random.Random(4)
        self.buckets: list[Bucket] = []
        self.snapshot: Snapshot = build_snapshot([], {"engine": COSTS}, now=NOW, arms={"engine": ARMS})

    def decide(self, name: str, wish: str = "auto") -> Decision:
        return decide(
            request(path_wish=wish),
            Classification(name, 1.0, "declared"),
            self.rule,
            self.snapshot,
            {"engine": backend(adaptive=True)},
            prompt_tokens=50,
            draw=OUTSIDE,
            policy="p",
        )

    def serve(self, name: str, wish: str = "auto") -> Decision:
        """Send one request, two seconds after the last, and learn from it."""
        decision = self.decide(name, wish)
        self.now += 2.0
        made = answered(self.rng, name, decision, self.now)
        self.buckets += [Bucket(int(made.at // 60), key, counters) for key, counters in observe(made)]
        self.snapshot = build_snapshot(
            self.buckets, {"engine": COSTS}, now=self.now, arms={"engine": ARMS}, previous=self.snapshot
        )
        return decision


def test_every_task_leaves_no_data_after_the_minimum_that_the_policy_states(rule: Rule) -> None:
    gateway = Gateway(rule)
    for name in ACCEPTANCE:
        states = [gateway.serve(name).state for _ in range(rule.break_even.min_requests)]
        assert set(states) == {"no_data"}
        assert gateway.decide(name).state != "no_data", gateway.decide(name).reason


def test_tasks_end_where_their_acceptance_says(rule: Rule) -> None:
    gateway = Gateway(rule)
    for _ in range(15):
        for name in ACCEPTANCE:
            gateway.serve(name)
    decisions = {name: gateway.decide(name) for name in ACCEPTANCE}
    for name in ("structured", "code", "summarization"):
        assert (decisions[name].arm.method, decisions[name].state) == ("ngram", "ok"), decisions[name].reason
    creative = decisions["creative"]
    assert (creative.arm.method, creative.state) == (PLAIN, "ok"), creative.reason
    assert " <= 1 + " in creative.reason


def test_the_demo_on_both_paths_is_enough_to_decide(rule: Rule) -> None:
    """Six prompts of each task, each on both paths because the client asks so."""
    gateway = Gateway(rule)
    for _ in range(6):
        for name in ACCEPTANCE:
            for wish in ("plain", "speculative"):
                assert gateway.serve(name, wish).arm.path == wish
    states = {name: gateway.decide(name).state for name in ACCEPTANCE}
    assert [name for name, state in states.items() if state == "no_data"] == []
    assert gateway.decide("creative").arm == Arm("engine")
    assert gateway.decide("structured").arm.path == "speculative"
    rows = {row.task: row for row in summarize(gateway.snapshot, list(ACCEPTANCE))}
    assert (rows["creative"].path, rows["creative"].state) == ("plain", "ok")
    assert (rows["code"].path, rows["code"].state) == ("speculative", "ok")
