"""A rule's confidence, half-life and minimum of requests: what they change, and that the usual ones change nothing."""

from __future__ import annotations

import random

import pytest

from gateway.policy.schema import BreakEven
from gateway.routing import Bucket, Snapshot, Tuning, build_snapshot, decide, observe, summarize, thresholds_of
from gateway.routing.thresholds import USUAL, tuned
from gateway.types import Arm
from tests.unit.gateway.routing.build import ARMS, NOW, backend, buckets_of, costs, record, request, rule, steps, task

OUTSIDE = 0.999999
"""A draw that is no probe."""


def ask(snapshot: Snapshot, break_even: BreakEven, *, adaptive: bool = False):
    return decide(
        request(),
        task(),
        rule(break_even=break_even),
        snapshot,
        {"engine": backend(adaptive=adaptive)},
        prompt_tokens=50,
        draw=OUTSIDE,
        policy="p",
    )


def seen(buckets: list[Bucket], *thresholds: BreakEven, table=None, previous: Snapshot | None = None) -> Snapshot:
    wanted = thresholds_of([rule(break_even=one) for one in thresholds])
    return build_snapshot(
        buckets, {"engine": table or costs()}, now=NOW, arms={"engine": ARMS}, thresholds=wanted, previous=previous
    )


def requests(p: float, n: int, *, age_s: float = 0.0, seed: int = 7, k: int = 8) -> list[Bucket]:
    rng = random.Random(seed)
    return buckets_of([record(Arm("engine", "ngram", k), *steps(rng, p, k, 60), at=NOW - age_s) for _ in range(n)])


def test_the_usual_thresholds_are_the_snapshot_itself():
    assert tuned(Tuning(), USUAL) is tuned(Tuning(), USUAL) == Tuning()
    snapshot = seen(requests(0.8, 30), BreakEven(margin=0.1), BreakEven())
    assert snapshot.views == {}
    assert snapshot.under(BreakEven(margin=0.2)) is snapshot


def test_a_view_beside_it_changes_nothing_for_the_usual_ones():
    buckets = [bucket for p in (0.2, 0.5, 0.8) for bucket in requests(p, 15)]
    alone, beside = seen(buckets), seen(buckets, BreakEven(confidence=0.6, half_life=120.0, min_requests=50))
    assert ask(alone, BreakEven()) == ask(beside, BreakEven())
    key = next(iter(alone.nodes))
    assert alone.nodes[key].state == beside.nodes[key].state


@pytest.mark.parametrize(("confidence", "settled"), [(0.6, True), (0.9999, False)])
def test_confidence_says_how_sure_a_node_settles(confidence: float, settled: bool):
    wanted = BreakEven(confidence=confidence)
    snapshot = seen(requests(0.4, 12, k=4), wanted, table=costs(alpha=0.12, beta=0.12))
    (node,) = snapshot.under(wanted).nodes.values()
    assert node.state.settled is settled


def test_a_lower_confidence_calls_a_loss_in_flight_earlier():
    """A task that loses: how far above the prior its best requests are taken to be depends on the confidence."""
    low, high = BreakEven(confidence=0.7), BreakEven(confidence=0.9999)
    buckets = requests(0.4, 15, k=2)
    snapshot = seen(buckets, low, high, table=costs(alpha=0.2, beta=0.2))
    assert ask(snapshot, low, adaptive=True).arm.path == "plain"
    assert ask(snapshot, BreakEven(), adaptive=True).arm.path == "speculative"
    assert ask(snapshot, high, adaptive=True).arm.path == "speculative"


def test_half_life_says_how_long_the_past_counts():
    """An hour ago drafts were accepted, now they are not: a long memory still believes in them."""
    buckets = [*requests(0.9, 100, age_s=3600), *requests(0.15, 6)]
    short, long = BreakEven(half_life=300.0), BreakEven(half_life=10800.0)
    snapshot = seen(buckets, short, long)
    assert ask(snapshot, short).numbers["a"] < 2
    assert ask(snapshot, long).numbers["a"] > 4
    assert snapshot.under(short).book is not snapshot.under(long).book is not snapshot.book


def test_statistics_decide_from_the_minimum_of_requests_on():
    few, many = BreakEven(min_requests=3), BreakEven(min_requests=40)
    snapshot = seen(requests(0.9, 20), few, many)
    assert ask(snapshot, few).state == "ok"
    decision = ask(snapshot, many)
    assert decision.state == "no_data"
    assert "20 of 40 requests seen" in decision.reason
    assert not next(iter(snapshot.under(many).nodes.values())).state.settled


def test_a_clear_loss_waits_for_no_minimum():
    many = BreakEven(min_requests=40)
    snapshot = seen(requests(0.02, 12), many, table=costs(alpha=0.1, beta=0.1))
    assert ask(snapshot, many).arm.path == "plain"
    assert ask(snapshot, many, adaptive=True).arm.path == "plain"


def test_views_carry_their_own_state_on_and_share_books_where_only_the_confidence_differs():
    one, other = BreakEven(confidence=0.9), BreakEven(confidence=0.99)
    buckets = requests(0.8, 30)
    first = seen(buckets, one, other)
    second = seen(buckets, one, other, previous=first)
    assert second.under(one).book is second.under(other).book is second.book
    assert second.under(one).nodes == first.under(one).nodes
    assert second.copied(stale=True).under(one).stale


def test_summaries_show_the_view_that_decided():
    """The page says what the rule that last asked has it, not what the usual thresholds would."""
    patient = BreakEven(min_requests=1000)
    buckets = requests(0.9, 30)
    snapshot = seen(buckets, patient)
    assert [row.state for row in summarize(snapshot, ["code"])] == ["ok"]
    ask(snapshot, patient)
    assert [row.state for row in summarize(snapshot, ["code"])] == ["no_data"]
    ask(snapshot, BreakEven())
    assert [row.state for row in summarize(snapshot, ["code"])] == ["ok"]


def test_what_is_observed_reaches_every_view():
    wanted = BreakEven(half_life=60.0)
    made = record(Arm("engine", "ngram", 4), [3, 4], [4, 4])
    buckets = [Bucket(int(NOW // 60), key, counters) for key, counters in observe(made)]
    snapshot = seen(buckets, wanted)
    assert snapshot.under(wanted).nodes.keys() == snapshot.nodes.keys()


def test_each_view_of_one_half_life_calls_a_loss_by_its_own_minimum():
    own = BreakEven(min_requests=1)
    snapshot = seen(requests(0.1, 3), own)
    key = next(iter(snapshot.nodes))
    sure = [view.nodes[key].flights["ngram"].sure for view in (snapshot, snapshot.under(own))]
    assert sure == [False, True]
