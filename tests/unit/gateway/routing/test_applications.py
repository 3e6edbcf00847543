"""Applications below a task: told apart where they draft differently, left to their task where they do not."""

from __future__ import annotations

import random

import pytest

from benchmarks.routing_applications import measure
from gateway.routing import Snapshot, build_snapshot, decide, summarize
from gateway.routing.applications import label, parent_of
from gateway.types import Arm, RequestRecord
from tests.unit.gateway.routing.build import ARMS, NOW, backend, buckets_of, costs, record, request, rule, steps, task

TABLE = costs(0.05, 0.15)


def made(acceptances: dict[str, float], n: int = 30) -> list[RequestRecord]:
    rng = random.Random(5)
    return [
        record(Arm("engine", "ngram", 4), *steps(rng, p, 4, 60), application=name)
        for _ in range(n)
        for name, p in acceptances.items()
    ]


def seen(records: list[RequestRecord], previous: Snapshot | None = None) -> Snapshot:
    return build_snapshot(buckets_of(records), {"engine": TABLE}, now=NOW, arms={"engine": ARMS}, previous=previous)


def taken(snapshot: Snapshot, application: str, *, adaptive: bool = False) -> Arm:
    asked = request(application=application)
    states = {"engine": backend(adaptive=adaptive)}
    decision = decide(asked, task(), rule(), snapshot, states, prompt_tokens=50, draw=0.999, policy="p")
    return decision.arm


@pytest.mark.parametrize("adaptive", [False, True])
def test_applications_that_differ_are_decided_by_themselves(adaptive: bool) -> None:
    snapshot = seen(made({"a": 0.9, "b": 0.02, "c": 0.85}))
    assert set(snapshot.finer) == {("engine", label("code", name)) for name in "abc"}
    assert taken(snapshot, "a", adaptive=adaptive).k > 0
    assert taken(snapshot, "b", adaptive=adaptive).k == 0
    assert taken(snapshot, "unknown", adaptive=adaptive) == taken(snapshot, "", adaptive=adaptive)


def test_applications_that_are_alike_are_left_to_their_task() -> None:
    assert seen(made({"a": 0.5, "b": 0.5, "c": 0.5})).finer == {}
    assert seen(made({"a": 0.9, "b": 0.02}, n=5)).finer == {}, "of few requests nothing is said"


def test_nothing_is_counted_twice_for_the_task_and_for_others() -> None:
    told = seen(made({"a": 0.9, "b": 0.02}))
    bare = [bucket for bucket in buckets_of(made({"a": 0.9, "b": 0.02})) if not parent_of(bucket.key.task)]
    untold = build_snapshot(bare, {"engine": TABLE}, now=NOW, arms={"engine": ARMS})
    key = ("engine", "code", "0", "512", 1)
    assert told.node(key).evidence == untold.node(key).evidence
    other = ("engine", "math", "0", "512", 1)
    assert told.node(other).evidence == untold.node(other).evidence
    assert [row.task for row in summarize(told, ["code"])] == ["code"]


@pytest.mark.slow
def test_they_are_worth_it_where_they_differ_and_cost_nothing_where_not() -> None:
    apart, alike = measure("apart", 32, 1), measure("alike", 32, 1)
    assert apart["routed by application"] < 0.95 * apart["routed by task"]
    assert apart["in flight by application"] < apart["in flight by task"]
    assert alike["routed by application"] < 1.002 * alike["routed by task"]
