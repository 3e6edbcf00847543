"""A draft that is gone, or whose proposals no longer hold, is told from one that is only unlucky."""

from __future__ import annotations

import random

import pytest

from gateway.backends.draft import ANSWERS, TOKENS, DraftWatch
from gateway.types import Spec


def spec(drafted: int, accepted: int) -> Spec:
    return Spec(rounds=drafted // 4, drafted=drafted, accepted=accepted, histogram=[])


@pytest.mark.parametrize("drafted", [1, 20, 100])
def test_a_dead_draft_is_told_once(drafted: int) -> None:
    watch = DraftWatch()
    needed = max(ANSWERS, -(-TOKENS // drafted))
    assert [watch.note(spec(drafted, 0)) for _ in range(needed + 5)].index(True) == needed - 1
    assert f"none of {drafted * (needed + 5)} tokens" in watch.fault(wanted=True)
    assert not watch.note(spec(4, 1))
    assert watch.fault(wanted=True) == ""


def test_answers_without_a_draft_say_nothing() -> None:
    watch = DraftWatch()
    assert not any(watch.note(spec(0, 0)) for _ in range(100))


def test_a_poor_draft_is_not_dead() -> None:
    rng, watch = random.Random(3), DraftWatch()
    dead = [watch.note(spec(40, sum(rng.random() < 0.05 for _ in range(40)))) for _ in range(5000)]
    assert sum(dead) <= 2


def test_what_the_server_says_of_itself() -> None:
    assert "does not speculate" in DraftWatch(speculates=False).fault(wanted=True)
    assert "speculates" in DraftWatch(speculates=True).fault(wanted=False)
    assert DraftWatch(speculates=True).fault(wanted=True) == DraftWatch(speculates=False).fault(wanted=False) == ""
    assert DraftWatch().fault(wanted=True) == DraftWatch().fault(wanted=False) == ""
