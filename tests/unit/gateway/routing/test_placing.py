"""Several backends: queue and start are charged, traffic moves by degrees, conversations stay with their cache."""

from __future__ import annotations

import itertools
import random

import pytest

from gateway.routing import Snapshot, build_snapshot
from gateway.routing.flow import Flow
from gateway.routing.placing import wait_s
from gateway.types import Arm, BackendState, Decision
from tests.unit.gateway.routing.build import NOW, backend, buckets_of, record, request, rule, task

PLAIN, FAST = Arm("plain"), Arm("spec", "eagle", 4)
ARMS = {"plain": (PLAIN,), "spec": (FAST,)}


def pools(**spec: object) -> dict[str, BackendState]:
    fields: dict[str, object] = {"kind": "vllm", "per_request_switch": False, "running": 7}
    return {"plain": backend("plain", (PLAIN,), **fields), "spec": backend("spec", (FAST,), **(fields | spec))}


def learned(ratio: float, *, start: float = 0.05, previous: Snapshot | None = None, at: float = NOW) -> Snapshot:
    """40 requests of 51 tokens on each pool; plain takes 20 ms a token and 50 ms to the first one, nothing waits."""
    rng = random.Random(3)
    records = []
    for _ in range(40):
        records.append(record(PLAIN, [1] * 50, [0] * 50, tpot_s=0.02 * rng.lognormvariate(0, 0.05)))
        tpot = 0.02 * ratio * rng.lognormvariate(0, 0.05)
        records.append(record(FAST, [3] * 20, [4] * 20, tpot_s=tpot, ttft_s=start))
    for made in records:
        made.decision.load = 8
    for _ in range(2):
        previous = build_snapshot(buckets_of(records), {}, now=at, arms=ARMS, previous=previous)
    assert previous is not None
    return previous


def choices(
    snapshot: Snapshot, states: dict[str, BackendState], n: int = 400, *, sticky: bool = True, **more: str
) -> list[Decision]:
    from gateway.routing import decide

    rng = random.Random(1)
    return [
        decide(
            request(max_tokens=None), task(), rule(probe=0.0, sticky=sticky), snapshot, states, prompt_tokens=50,
            draw=rng.random(), policy="p", **({"conversation": f"c{i}"} | more),
        )
        for i in range(n)
    ]  # fmt: skip


def share(decisions: list[Decision], arm: Arm) -> float:
    return sum(decision.arm == arm for decision in decisions) / len(decisions)


def test_a_queue_takes_what_is_ahead_over_the_rate_at_which_sequences_end() -> None:
    state = backend(running=8, waiting=4)
    assert wait_s(state, 2.0) == pytest.approx(4 * 2.0 / 8)
    assert wait_s(backend(running=8), 2.0) == 0
    assert wait_s(backend(running=8, kv_used=0.99), 2.0) == pytest.approx(2.0 / 8)


def test_the_faster_pool_loses_requests_to_its_queue_by_degrees() -> None:
    snapshot = learned(0.6)
    assert share(choices(snapshot, pools()), FAST) == 1.0
    some = choices(snapshot, pools(waiting=16))  # about 1.4 s of queue against 0.4 s gained
    assert 0.5 < share(some, FAST) < 0.95
    assert "in its queue" in next(d.reason for d in some if d.arm == PLAIN)
    assert share(choices(snapshot, pools(waiting=80)), FAST) < 0.1


def test_a_full_cache_counts_as_a_queue_but_costs_little_where_much_is_gained() -> None:
    assert share(choices(learned(0.6), pools(kv_used=0.97)), FAST) > 0.9


def test_a_start_that_eats_the_gain_is_charged() -> None:
    assert share(choices(learned(0.7, start=0.05), pools()), FAST) == 1.0
    assert share(choices(learned(0.7, start=1.0), pools()), FAST) == 0.0


def test_a_change_of_mind_moves_traffic_over_some_seconds_and_each_conversation_once() -> None:
    snapshot = learned(0.6)
    choices(snapshot, pools())
    changed = learned(1.5, previous=snapshot, at=NOW + 1)
    seen = []
    for second in range(2, 30):
        seen.append([d.arm == FAST for d in choices(changed, pools(), 200)])
        changed = learned(1.5, previous=changed, at=NOW + second)
    shares = [sum(row) / len(row) for row in seen]
    assert max(before - after for before, after in itertools.pairwise(shares)) < 0.35
    assert shares[0] > 0.6
    assert shares[-1] < 0.03
    for conversation in zip(*seen, strict=True):
        assert sum(a != b for a, b in itertools.pairwise(conversation)) <= 1


def test_a_conversation_stays_where_its_prefix_is_cached_unless_the_gain_pays() -> None:
    dear = learned(0.9, start=0.3)  # 0.1 s gained on the tokens, 0.3 s of prefill to pay
    assert share(choices(dear, pools(), home="plain"), PLAIN) == 1.0
    cheap = learned(0.5, start=0.05)
    assert share(choices(cheap, pools(), home="plain"), FAST) == 1.0
    unsure = learned(0.9, start=0.13)  # faster in all, but not by the prefill that it would take again
    assert share(choices(unsure, pools(), home="plain"), PLAIN) == 1.0
    assert share(choices(unsure, pools(), home="plain", sticky=False), FAST) == 1.0


def test_shares_follow_with_a_lag_and_forget_small_rests() -> None:
    flow = Flow(at=0.0)
    kind = ("code", "0", "512")
    assert flow.place(kind, "a", ("a", "b"), 0.99) == "a"
    flow.advance(1.0, 5.0)
    flow.place(kind, "b", ("a", "b"), 0.5)
    flow.advance(6.0, 5.0)
    assert flow.shares[kind]["b"] == pytest.approx(1 - 2.718281828**-1, abs=1e-6)
    assert flow.place(kind, "b", ("b",), 0.0) == "b"  # the other one cannot be had
    flow.advance(100.0, 5.0)
    assert flow.shares[kind] == {"b": 1.0}
