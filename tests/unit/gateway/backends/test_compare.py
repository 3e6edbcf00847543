"""Replicas of one arm compared: the slow one and the one with a dead draft are named, equal ones next to never."""

from __future__ import annotations

import random
from typing import Any

import pytest

from gateway.backends.compare import DRAFT, LIMIT, SLOW, Comparison, Sent
from gateway.types import Arm, Spec

ARM = Arm("pool", "ngram", 4)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        self.now += 0.1
        return self.now


def answer(
    comparison: Comparison, replica: int, number: int, *, pace: float, accepted: int, **other: Any
) -> list[tuple[int, str]]:
    sent = Sent(**{"replica": replica, "epoch": "e", "conversation": number, "arm": ARM, "load": 1, **other})
    payload = {"usage": {"completion_tokens": 100}}
    spec = Spec(rounds=40, drafted=160, accepted=accepted, histogram=[])
    seen = sent.answered(100 * pace, payload, spec, streamed=True)
    assert seen is not None
    return comparison.see(seen)


def until_named(
    rng: random.Random, factor: float, share: float, answers: int, replicas: int = 2, **other: Any
) -> tuple[int, list[tuple[int, str]]]:
    """Answer conversations of very different kinds; replica 0 is `factor` as slow, its draft gives `share`."""
    comparison = Comparison(Clock())
    for number in range(answers):
        replica = rng.randrange(replicas)
        task = rng.choice((0.3, 1.0, 3.0))
        pace = 0.01 * task * rng.lognormvariate(0, 0.2) * (factor if replica == 0 else 1)
        accepted = int(100 * rng.betavariate(2, 2) / task**0.5 * (share if replica == 0 else 1))
        named = answer(comparison, replica, number, pace=pace, accepted=accepted, **other)
        if named:
            return number, named
    return answers, []


@pytest.mark.parametrize("replicas", [2, 3])
def test_a_dead_draft_is_named_within_a_hundred_answers(replicas: int) -> None:
    for seed in range(20):
        number, named = until_named(random.Random(seed), 1.0, 0.0, 1000, replicas)
        assert named == [(0, DRAFT)]
        assert number < 100


def test_a_slow_replica_is_named_though_tasks_differ_more() -> None:
    found = [until_named(random.Random(seed), 4.0, 1.0, 3000) for seed in range(20)]
    assert all(named == [(0, SLOW)] for _, named in found)
    assert sorted(number for number, _ in found)[10] < 200


def test_equal_replicas_are_named_less_often_than_stated() -> None:
    rng = random.Random(1)
    answers = alarms = 0
    while answers < 60_000:
        number, named = until_named(rng, 1.0, 1.0, 60_000 - answers)
        answers += number + 1
        alarms += bool(named)
    assert alarms <= 2 * 2 * 2 * (answers / 2) / LIMIT  # two replicas, two bets, half of the answers close a pair


def test_a_coin_at_even_odds_is_the_worst_case_of_the_bet() -> None:
    rng = random.Random(2)
    alarms, pairs, comparison = 0, 0, Comparison(Clock())
    for number in range(100_000):
        pairs += 1
        slower = rng.random() < 0.5
        answer(comparison, 1, 2 * number, pace=1.0, accepted=50)
        for replica, _ in answer(comparison, 0, 2 * number + 1, pace=2.0 if slower else 1.0, accepted=50):
            alarms += 1
            comparison.forget(replica)
    assert alarms <= 2 * pairs / LIMIT


def test_what_differs_in_load_or_form_is_not_compared() -> None:
    comparison = Comparison(Clock())
    for number in range(200):
        assert answer(comparison, 0, 2 * number, pace=9.0, accepted=0, load=8) == []
        assert answer(comparison, 1, 2 * number + 1, pace=1.0, accepted=90) == []


def test_one_long_conversation_proves_nothing() -> None:
    comparison = Comparison(Clock())
    for number in range(500):
        assert answer(comparison, 0, 1, pace=9.0, accepted=0) == []
        assert answer(comparison, 1, 2 + number, pace=1.0, accepted=90) == []


def test_requests_that_all_begin_alike_are_compared_with_each_other() -> None:
    comparison = Comparison(Clock())
    named = []
    for _ in range(40):
        answer(comparison, 1, 7, pace=1.0, accepted=90)
        named += answer(comparison, 0, 7, pace=1.0, accepted=0)
        if named:
            break
    assert named == [(0, DRAFT)]


def test_a_new_process_begins_anew() -> None:
    comparison = Comparison(Clock())
    for number in range(200):
        answer(comparison, 1, 2 * number, pace=1.0, accepted=90)
        epoch = str(number // 19)  # one pair short of the limit
        assert answer(comparison, 0, 2 * number + 1, pace=9.0, accepted=90, epoch=epoch) == []


def test_a_replica_that_is_well_again_is_not_named_for_what_was() -> None:
    comparison = Comparison(Clock())
    for number in range(3000):  # named, but not left out: others are
        answer(comparison, 1, 2 * number, pace=1.0, accepted=90)
        answer(comparison, 0, 2 * number + 1, pace=9.0, accepted=90)
    answer(comparison, 1, 6000, pace=1.0, accepted=90)
    assert answer(comparison, 0, 6001, pace=1.0, accepted=90) == []


@pytest.mark.parametrize("payload", [{}, {"usage": None}, {"usage": {"completion_tokens": 3}}])
def test_answers_that_tell_too_little(payload: dict[str, Any]) -> None:
    assert Sent(0, "e", 5, ARM, 1).answered(1.0, payload, None, streamed=False) is None
