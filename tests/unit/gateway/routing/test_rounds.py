"""Views at shorter draft lengths, against real replays of the same trace."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.rounds import (
    closing_run,
    first_trials,
    position_counts,
    probe_gain,
    view_at,
    view_of_histogram,
)


def replay(unlimited: list[int], k: int) -> tuple[list[int], list[int]]:
    emitted: list[int] = []
    at = 0
    while at < len(unlimited):
        emitted.append(min(unlimited[at], k + 1, len(unlimited) - at))
        at += emitted[-1]
    return emitted, [k] * len(emitted)


def joined_trace(rng: np.random.Generator, size: int, p: float) -> list[int]:
    """A draft that holds at a position or not: what a round emits is the run of holding positions from its start."""
    holds = rng.random(size) < p
    unlimited, run = [1] * size, 0
    for i in range(size - 1, -1, -1):
        run = run + 1 if holds[i] else 0
        unlimited[i] = 1 + run
    return unlimited


@pytest.mark.parametrize("p", [0.2, 0.5, 0.8, 0.95])
@pytest.mark.parametrize(("ran_at", "k"), [(8, 4), (8, 2), (4, 2), (8, 1)])
def test_a_longer_draft_tells_what_a_shorter_one_would_have_done(p: float, ran_at: int, k: int) -> None:
    """Within 4 % in rounds (the stated error) over 200 requests of 100 tokens."""
    rng = np.random.default_rng(3)
    seen = true = 0
    for _ in range(200):
        trace = joined_trace(rng, 100, p)
        seen += view_at(*replay(trace, ran_at), ran_at, k).rounds
        true += len(replay(trace, k)[0])
    assert seen == pytest.approx(true, rel=0.04)


STEPS = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=60)


@given(STEPS, st.integers(1, 8))
def test_views_conserve_tokens_and_stay_consistent(pairs: list[tuple[int, int]], k: int) -> None:
    drafted = [d for d, _ in pairs]
    emitted = [min(a, d) + 1 for d, a in pairs]
    view = view_at(emitted, drafted, 8, k)
    assert view.rounds + view.accepted + view.undrafted == sum(emitted)
    assert 0 <= view.zero <= view.rounds
    assert view.accepted <= view.drafted <= k * view.rounds


@given(st.lists(st.integers(0, 50), min_size=9, max_size=9), st.integers(1, 8))
def test_histogram_views_conserve_tokens(histogram: list[int], k: int) -> None:
    view = view_of_histogram(histogram, 3, 8, k)
    assert view.rounds + view.accepted + view.undrafted == 3 + sum((j + 1) * n for j, n in enumerate(histogram))


@given(STEPS)
def test_position_counts_are_a_survival_curve(pairs: list[tuple[int, int]]) -> None:
    drafted = [d for d, _ in pairs]
    emitted = [min(a, d) + 1 for d, a in pairs]
    trials, passed = position_counts(emitted, drafted)
    assert all(0 <= s <= t for s, t in zip(passed, trials, strict=True))
    assert sum(passed) == sum(e - 1 for e, d in zip(emitted, drafted, strict=True) if d)
    assert all(trials[j + 1] <= passed[j] for j in range(len(trials) - 1))


def test_position_counts_by_hand() -> None:
    """Rounds accept 2 of 4, 0 of 4, 4 of 4 and, cut by the end, 1 of 4: what the cut took was missed too."""
    trials, passed = position_counts([3, 1, 5, 2], [4, 4, 4, 4])
    assert trials[:4] == [4, 3, 2, 1]
    assert passed[:4] == [3, 2, 1, 1]


def test_short_outputs_are_counted_for_what_their_rounds_emit() -> None:
    """Every draft holds, but an output of three tokens ends in it: a round of 8 is worth 3 tokens, not 9."""
    trials, passed = position_counts([3], [8])
    alive = [passed[0] / trials[0], passed[1] / trials[1], passed[2] / trials[2]]
    assert alive == [1.0, 1.0, 0.0]


def test_first_trials_and_closing_run() -> None:
    assert first_trials([3, 1, 1, 5], [4, 0, 4, 4], 2) == (2, 1)
    assert closing_run([1, 5, 5, 3], [4, 4, 4, 4]) == 13
    assert closing_run([5, 5, 1, 5], [4, 4, 0, 4]) == 5
    assert closing_run([], []) == 0


def test_probe_gain_counts_only_rounds_after_a_quiet_stretch() -> None:
    emitted = [5, 1] + [1] * 8 + [4, 1, 1] + [1] * 8 + [1]
    drafted = [4, 4] + [0] * 8 + [4, 4, 0] + [0] * 8 + [4]
    episodes, gained = probe_gain(emitted, drafted, lambda _k: 1.5, 8)
    assert episodes == 2
    assert gained == pytest.approx((4 - 1.5) + (1 - 1.5) + (1 - 1.5))
