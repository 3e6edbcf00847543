"""Counters: what they count, that they merge in any order, and that nothing odd makes them fail."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.messages import Adaptive, Speculation
from gateway.routing import build_snapshot, observe
from gateway.types import Arm, CellKey, Spec
from tests.unit.gateway.routing.build import ARMS, NOW, buckets_of, costs, record, steps

K8 = Arm("engine", "ngram", 8)


def test_counts_by_hand() -> None:
    ((key, counters),) = observe(record(Arm("engine", "ngram", 4), [5, 1, 3, 1], [4, 4, 4, 0]))
    assert key == CellKey("engine", "e1", "ngram", 4, "code", "0", "512", 1)
    assert (counters["n"], counters["rnd"], counters["acc"], counters["zero"], counters["und"]) == (1, 3, 6, 1, 1)
    assert (counters["r4"], counters["u4"], counters["t"], counters["t*t"], counters["t*r4"]) == (3, 1, 10, 100, 30)
    assert counters["r2"] == 3  # the full round joins the next: 5 + 1 tokens make two rounds of 3, then one of 3
    assert {counters[f"h{j}"] for j in (0, 2, 4)} == {1}
    assert counters["mt"] == round(0.01 * 10 / 1e-4)


@pytest.mark.parametrize(
    "changes",
    [{"fallback": True}, {"status": 499}, {"status": 500}, {"completion_tokens": None}, {"completion_tokens": 0}],
)
def test_failed_requests_teach_nothing(changes: dict[str, object]) -> None:
    assert observe(record(K8, [3, 2], [8, 8], **changes)) == []


def test_loops_are_screened_and_counted() -> None:
    ((_, flagged),) = observe(record(K8, [3, 2], [8, 8], loop=True))
    ((_, caught),) = observe(record(K8, [2] + [9] * 20, [8] * 21, finish_reason="length"))
    ((_, copied),) = observe(record(K8, [2] + [9] * 20, [8] * 21, finish_reason="stop"))
    assert flagged == caught == {"loops": 1}
    assert copied["rnd"] == 21


def test_a_histogram_alone_is_enough() -> None:
    spec = Spec(4, 16, 7, [1, 1, 1, 0, 1])
    ((_, counters),) = observe(record(Arm("engine", "eagle", 4), [1], [0], spec=spec, completion_tokens=12))
    assert (counters["rnd"], counters["acc"], counters["zero"], counters["t"]) == (4, 7, 1, 11)
    assert counters["r2"] > counters["r4"]


def test_a_backend_that_reports_nothing_still_gives_times() -> None:
    ((_, counters),) = observe(record(Arm("pool", "eagle", 4), [1], [0], spec=None, completion_tokens=12))
    assert (counters["mn"], counters["mtok"], counters["tok"]) == (1, 11, 11)
    assert "rnd" not in counters


def test_in_flight_requests_count_their_probes() -> None:
    """Two rounds, ten plain steps, then a probe that gains 4 − 1.4 plain steps."""
    emitted, drafted = [3, 1] + [1] * 10 + [4], [4, 4] + [0] * 10 + [4]
    made = record(Arm("engine", "ngram", 4), emitted, drafted)
    made.decision.speculation = Speculation("ngram", 4, Adaptive([(2, 1.2), (4, 1.4)], [0.5]))
    ((_, counters),) = observe(made)
    assert (counters["fn"], counters["fg"], counters["fgg"]) == (1, 260, 67600)
    assert "r2" not in counters


VALUES = st.integers(0, 12)


@given(st.lists(st.tuples(VALUES, VALUES), max_size=30), st.sampled_from([0, 1, 4, 8]), st.integers(0, 300))
def test_never_raises_and_counts_are_integers(pairs: list[tuple[int, int]], k: int, tokens: int) -> None:
    arm = Arm("engine", "ngram", k) if k else Arm("engine")
    spec = Spec(3, 9, 2, [1, 2], None, step_emitted=[e for e, _ in pairs], step_drafted=[d for _, d in pairs])
    for _, counters in observe(record(arm, [1], [0], spec=spec, completion_tokens=tokens, tpot_s=None)):
        assert all(type(value) is int and abs(value) < 2**62 for value in counters.values())


def test_one_long_request_is_far_from_overflow() -> None:
    """A million of the longest requests a minute still fit int64."""
    made = record(K8, [1] * 4096, [8] * 4096, completion_tokens=131072, tpot_s=2.0)
    ((_, counters),) = observe(made)
    assert max(counters.values()) * 10**4 < 2**63


@settings(deadline=None)
@given(st.randoms(use_true_random=False))
def test_merging_does_not_depend_on_the_order(shuffler: random.Random) -> None:
    """Gateways add the same increments in any order and grouping: the snapshot is the same to the last bit of r."""
    rng = random.Random(5)
    records = [
        record(Arm("engine", "ngram", k), *steps(rng, p, k, 40), task=name, prompt_tokens=context)
        for k, p, name, context in [(8, 0.7, "code", 50), (4, 0.4, "chat", 900), (2, 0.5, "code", 700)] * 4
    ]
    table = {"engine": costs()}
    before = build_snapshot(buckets_of(records), table, now=NOW, arms={"engine": ARMS})
    shuffler.shuffle(records)
    merged: dict[CellKey, dict[str, int]] = {}
    for _, key, counters in [msgspec.structs.astuple(bucket) for bucket in buckets_of(records)]:
        into = merged.setdefault(key, {})
        for name, value in counters.items():
            into[name] = into.get(name, 0) + value
    bucket = buckets_of(records)[0]
    buckets = [type(bucket)(bucket.minute, key, counters) for key, counters in merged.items()]
    after = build_snapshot(buckets, table, now=NOW, arms={"engine": ARMS})
    assert before.nodes.keys() == after.nodes.keys()
    for key, node in before.nodes.items():
        other = after.nodes[key]
        assert node.state == other.state
        for one, two in zip(node.evidence.arms, other.evidence.arms, strict=True):
            assert (one.key, one.rounds, one.requests) == (two.key, two.rounds, two.requests)
            assert one.r == pytest.approx(two.r, abs=1e-9)
            assert one.se == pytest.approx(two.se, abs=1e-6)
