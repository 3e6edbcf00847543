"""Applications below a task: told apart where they draft differently, left to their task where they do not."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable

import msgspec
import pytest

from benchmarks.routing_applications import measure
from gateway.api.explaining import Circumstances, request_to_explain
from gateway.explain import explain
from gateway.policy import parse_policy
from gateway.policy.schema import BreakEven, Rule
from gateway.routing import Bucket, Snapshot, build_snapshot, decide, summarize, thresholds_of
from gateway.routing.applications import label, parent_of
from gateway.types import Arm, CellKey, Decision, RequestRecord
from tests.unit.gateway.routing.build import ARMS, NOW, backend, buckets_of, costs, record, request, rule, steps, task

TABLE = costs(0.05, 0.15)


def made(acceptances: dict[str, float], n: int = 30) -> list[RequestRecord]:
    rng = random.Random(5)
    return [
        record(Arm("engine", "ngram", 4), *steps(rng, p, 4, 60), application=name)
        for _ in range(n)
        for name, p in acceptances.items()
    ]


def seen(
    records: list[RequestRecord], previous: Snapshot | None = None, *, rules: Iterable[Rule] = (), at: float = NOW
) -> Snapshot:
    sums: dict[tuple[int, CellKey], Counter[str]] = {}
    for one in buckets_of(records):
        sums.setdefault((one.minute, one.key), Counter()).update(one.counters)
    return build_snapshot(
        [Bucket(*place, dict(counters)) for place, counters in sums.items()],
        {"engine": TABLE},
        now=at,
        arms={"engine": ARMS},
        previous=previous,
        thresholds=thresholds_of(rules),
    )


def ask(snapshot: Snapshot, application: str, by: Rule | None = None, *, adaptive: bool = False) -> Decision:
    asked = request(application=application)
    states = {"engine": backend(adaptive=adaptive)}
    return decide(asked, task(), by or rule(), snapshot, states, prompt_tokens=50, draw=0.999, policy="p")


def taken(snapshot: Snapshot, application: str, *, adaptive: bool = False) -> Arm:
    return ask(snapshot, application, adaptive=adaptive).arm


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


def test_the_nodes_of_applications_that_are_gone_go_too() -> None:
    records = made({"a": 0.9, "b": 0.02})
    own = rule(break_even=BreakEven(min_requests=20))
    snapshot = seen(records, rules=[own])
    for name in "ab":
        ask(snapshot, name)
        ask(snapshot, name, own)
    kept = seen(records, snapshot, rules=[own])
    assert {key[1] for key in kept.nodes} == {key[1] for key in kept.asked} == {"code", "code@a", "code@b"}
    bare = [bucket for bucket in buckets_of(records) if not parent_of(bucket.key.task)]
    left = build_snapshot(
        bare, {"engine": TABLE}, now=NOW, arms={"engine": ARMS}, previous=kept, thresholds=thresholds_of([own])
    )
    assert {key[1] for view in (left, *left.views.values()) for key in view.nodes} == {"code"}
    assert {key[1] for key in left.asked} == {"code"}


def test_a_row_has_the_alarm_and_the_thresholds_of_the_rule_that_decided_an_application() -> None:
    own = rule(zero_accept_alarm=None, break_even=BreakEven(min_requests=20))
    snapshot = seen(made({"a": 0.02, "b": 0.12}), rules=[own])
    assert len(snapshot.finer) == 2
    assert any(row.zero_accept_alarm for row in summarize(snapshot, ["code"])[0].arms)
    for _ in range(2):  # weighed, then from memory
        ask(snapshot, "a")
        ask(snapshot, "a", own)
    ((view, _, _),) = [found for found in snapshot.in_force() if found[1][1] == "code"]
    assert view is snapshot.under(own.break_even)
    assert not any(arm.zero_accept_alarm for row in summarize(snapshot, ["code"]) for arm in row.arms)


def test_applications_are_told_apart_again_after_a_change() -> None:
    early = made({"a": 0.9, "b": 0.6})
    told = seen(early)
    scope = ("engine", "ngram", "code")
    assert {where: watch.since for where, watch in told.eras.watches.tasks.items()} == {scope: len(early)}
    late = [msgspec.structs.replace(one, at=NOW + 60) for one in made({"a": 0.0, "b": 0.0})]
    told = seen(early + late, told, at=NOW + 60)
    assert told.eras.fresh.keys() == {scope}
    after = [msgspec.structs.replace(one, at=NOW + 240) for one in made({"a": 0.9, "b": 0.02}, n=50)]
    told = seen(early + late + after, told, at=NOW + 240)
    assert set(told.finer) == {("engine", label("code", name)) for name in "ab"}


def test_the_name_of_an_application_may_hold_anything() -> None:
    assert parent_of(label("chat", "a@x")) == "chat"


def test_an_explanation_goes_by_the_application_of_key_and_system_prompt() -> None:
    policy = parse_policy("version: 1\nrules: [{name: any}]\n", "p", env={})
    states = {"engine": backend()}
    bodies = {
        who: b'{"model": "m", "messages": [{"role": "system", "content": "%s"}, {"role": "user", "content": "hi"}],'
        b' "temperature": 0}' % who.encode()
        for who in ("keen", "dull")
    }
    asked = {who: request_to_explain(body, Circumstances(key="k"))[0] for who, body in bodies.items()}
    snapshot = seen(made({asked["keen"].application: 0.9, asked["dull"].application: 0.02}))
    paths = {who: explain(policy, one, task(), snapshot, states, prompt_tokens=50).path for who, one in asked.items()}
    assert paths == {"keen": "speculative", "dull": "plain"}


@pytest.mark.slow
def test_they_are_worth_it_where_they_differ_and_cost_nothing_where_not() -> None:
    apart, alike = measure("apart", 32, 1), measure("alike", 32, 1)
    assert apart["routed by application"] < 0.95 * apart["routed by task"]
    assert apart["in flight by application"] < apart["in flight by task"]
    assert alike["routed by application"] < 1.002 * alike["routed by task"]
