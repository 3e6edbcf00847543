"""What requests of one draft length say about another, and what those under in-flight control do not say."""

import random

import pytest

from engine.messages import Adaptive, Speculation
from gateway.routing import build_snapshot, decide
from gateway.routing.rounds import view_at
from gateway.types import Arm, Decision
from tests.unit.gateway.routing.build import ARMS, NOW, backend, buckets_of, costs, record, request, rule, steps, task

KEY = ("engine", "code", "0", "512", 1)


def flown(tokens=40):
    """A request at k = 8 whose drafting was stopped after a first round that failed."""
    speculation = Speculation("ngram", 8, Adaptive([(2, 1.2), (4, 1.4), (8, 1.8)], [0.5], 32.0, 24))
    arm = Arm("engine", "ngram", 8)
    decision = Decision(arm, "", "ok", "default", "p", numbers={"offered": [2, 4, 8]}, speculation=speculation, load=1)
    emitted = [1] * tokens
    return record(arm, emitted, [8] + [0] * (tokens - 1), decision=decision)


def fixed(k, n, seed=3):
    rng = random.Random(seed)
    return [record(Arm("engine", "ngram", k), *steps(rng, 0.6, k, 60)) for _ in range(n)]


def evidence(records):
    snapshot = build_snapshot(buckets_of(records), {"engine": costs()}, now=NOW, arms={"engine": ARMS})
    return snapshot.node(KEY).evidence


def test_a_request_controlled_in_flight_says_nothing_of_shorter_drafts():
    alone, both = evidence(fixed(4, 20)), evidence([*fixed(4, 20), *(flown() for _ in range(200))])
    for k in (2, 4):
        before, after = alone.find(("ngram", k)), both.find(("ngram", k))
        assert (after.requests, after.rounds, after.a) == pytest.approx((before.requests, before.rounds, before.a))
        assert after.gain == pytest.approx(before.gain)


def test_a_request_controlled_in_flight_tells_of_the_arm_it_ran_in():
    longest = evidence([flown(40) for _ in range(10)]).find(("ngram", 8))
    assert (longest.requests, longest.rounds, longest.a) == pytest.approx((10, 10, 1.0))
    assert longest.r == pytest.approx((39 + 1 + 8 * 0.05 + 8 * 0.05) / 40)
    shorter = evidence([flown(40) for _ in range(10)]).find(("ngram", 4))
    assert (shorter.requests, shorter.a) == (0, None)


def test_lengths_are_compared_on_requests_of_fixed_length_only():
    alone, both = evidence(fixed(8, 20)), evidence([*fixed(8, 20), *(flown() for _ in range(200))])
    place = [arm.key for arm in alone.arms].index
    two, eight = place(("ngram", 2)), place(("ngram", 8))
    assert both.gap[two][eight] == pytest.approx(alone.gap[two][eight])
    assert both.spread[two][eight] == pytest.approx(alone.spread[two][eight])


def test_requests_recorded_while_a_length_was_not_on_offer_say_nothing_of_it():
    def only(k, n):
        rng = random.Random(5)
        arm = Arm("engine", "ngram", k)
        decision = Decision(arm, "", "ok", "default", "p", numbers={"offered": [k]}, load=1)
        return [record(arm, *steps(rng, 0.3, k, 60), decision=decision) for _ in range(n)]

    alone, both = evidence(fixed(4, 20)), evidence([*fixed(4, 20), *only(8, 200)])
    for k in (2, 4):
        before, after = alone.find(("ngram", k)), both.find(("ngram", k))
        assert (after.requests, after.a, after.gain) == pytest.approx((before.requests, before.a, before.gain))
    unknown = evidence(only(8, 50)).find(("ngram", 2))
    assert (unknown.requests, unknown.a) == (0, None)


def test_a_rule_with_one_draft_length_still_records_what_the_shorter_ones_would_have_done():
    snapshot = build_snapshot((), {"engine": costs()}, now=NOW, arms={"engine": ARMS})
    decision = decide(
        request(arm_wish=Arm("engine", "ngram", 8)), task(), rule(), snapshot, {"engine": backend()},
        prompt_tokens=50, draw=0.5, policy="p",
    )  # fmt: skip
    assert decision.numbers["offered"] == [2, 4, 8]


def test_rounds_undrafted_and_accepted_make_up_all_tokens_at_every_length():
    """What tells requests that reveal a length from those that do not."""
    rng = random.Random(1)
    for _ in range(500):
        k = rng.choice([2, 4, 8])
        drafted = [rng.choice([0, k, rng.randint(0, k)]) for _ in range(rng.randint(1, 30))]
        emitted = [rng.randint(1, d + 1) for d in drafted]
        for shorter in range(1, k + 1):
            view = view_at(emitted, drafted, k, shorter)
            assert view.rounds + view.undrafted + view.accepted == sum(emitted)
