"""A draft that is gone, or whose proposals no longer hold, is told from one that is only unlucky."""

from __future__ import annotations

import random

import pytest

from gateway.backends.draft import ANSWERS, ROUNDS, DraftWatch
from gateway.types import Spec


def spec(rounds: int, accepted: int) -> Spec:
    return Spec(rounds=rounds, drafted=4 * rounds, accepted=accepted, histogram=[])


@pytest.mark.parametrize("rounds", [1, 20, 100])
def test_a_dead_draft_is_told_once(rounds: int) -> None:
    watch = DraftWatch()
    needed = max(ANSWERS, -(-ROUNDS // rounds))
    assert [watch.note(spec(rounds, 0)) for _ in range(needed + 5)].index(True) == needed - 1
    assert f"in {rounds * (needed + 5)} rounds of {needed + 5} answers" in watch.fault(wanted=True)
    assert not watch.note(spec(1, 1))
    assert watch.fault(wanted=True) == ""


def test_an_answer_whose_rounds_are_not_told_counts_as_one() -> None:
    watch = DraftWatch()
    untold = Spec(rounds=0, drafted=40, accepted=0, histogram=[])
    assert [watch.note(untold) for _ in range(ROUNDS)].index(True) == ROUNDS - 1


def test_answers_without_a_draft_say_nothing() -> None:
    watch = DraftWatch()
    assert not any(watch.note(spec(0, 0)) for _ in range(300))


def test_a_draft_that_is_right_in_every_twentieth_round_is_not_dead() -> None:
    rng, watch = random.Random(3), DraftWatch()
    dead = [watch.note(spec(10, sum(rng.random() < 0.05 for _ in range(10)))) for _ in range(5000)]
    assert sum(dead) <= 2


def test_what_the_server_says_of_itself() -> None:
    assert "does not speculate" in DraftWatch(speculates=False).fault(wanted=True)
    assert "speculates" in DraftWatch(speculates=True).fault(wanted=False)
    assert DraftWatch(speculates=True).fault(wanted=True) == DraftWatch(speculates=False).fault(wanted=False) == ""
    assert DraftWatch().fault(wanted=True) == DraftWatch().fault(wanted=False) == ""
