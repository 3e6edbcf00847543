"""What a full round says of the next: found where drafts hold in stretches, not where requests merely differ."""

from __future__ import annotations

from collections import Counter

import numpy as np

from cli.simulation.costs import CostModel, Line
from cli.simulation.made_up import TaskSpec, make_traces
from cli.simulation.replay import build_table
from gateway.routing.observe import shape_counters
from gateway.routing.stats import layout_of
from gateway.routing.streaks import Streaks, streak_counters, streaks_of

LAYOUT = layout_of((4,))


def learnt(spec: TaskSpec, requests: int) -> Streaks:
    """Return what requests at k = 4 teach."""
    table = build_table(make_traces([spec], requests, 3), CostModel(1, 0.0, *[Line(1.0, 0.0, 0.0)] * 2), (4,))
    sums: Counter[str] = Counter()
    for _, at_four in table.steps:
        sums.update(shape_counters(at_four.emitted, at_four.drafted, 4, (4,)))
    return streaks_of(LAYOUT.vector(sums), None, LAYOUT)


def test_counters_by_hand() -> None:
    """What was accepted after a full round, after a failed one and after a step without a draft, without the ends."""
    counters = streak_counters([5, 3, 1, 1, 1, 1, 1, 1, 2], [4, 4, 4, 0, 4, 4, 4, 4, 4])
    assert {name: value / 64 for name, value in counters.items()} == {
        "xt0": 7.0, "xf0": 1.0, "xa0": round(64 * 5 / 7) / 64, "xb0": 0.0,
        "xg0": 1.0, "xc0": 0.0, "xd0": round(64 * 1 * 1 / 6) / 64,
        "xt1": 2.0, "xf1": 2.0, "xa1": 0.0, "xb1": 0.0,
    }  # fmt: skip
    assert streak_counters([3] + [1] * 9, [4] + [0] * 9) == {}, "nothing followed a round"


def test_a_new_match_has_to_prove_itself() -> None:
    """Half of the drafts hold, but hardly one of those that follow a step without a draft."""
    rng = np.random.default_rng(4)
    sums: Counter[str] = Counter()
    for _ in range(60):
        drafted = (4 * (rng.random(60) < 0.6)).tolist()
        chance = [0.1 if step and not drafted[step - 1] else 0.5 for step in range(60)]
        emitted = [1 + 2 * int(d > 0 and rng.random() < p) for d, p in zip(drafted, chance, strict=True)]
        sums.update(streak_counters(emitted, drafted))
    streaks = streaks_of(LAYOUT.vector(sums), None, LAYOUT)
    assert streaks.after_gap[0] < 0.5
    assert streaks.after_other[0] > 1.2


def test_short_requests_say_nothing() -> None:
    """In a few rounds a hit is followed by fewer hits than there are: independent ones would look opposed."""
    rng = np.random.default_rng(3)
    sums: Counter[str] = Counter()
    for size in (3, 40):
        for _ in range(2000 // size):
            emitted = (1 + 4 * (rng.random(size) < 0.5)).tolist()
            sums.update(streak_counters(emitted, [4] * size))
    streaks = streaks_of(LAYOUT.vector(sums), None, LAYOUT)
    np.testing.assert_allclose([streaks.after_full[0], streaks.after_other[0]], 1.0, atol=0.15)


def test_stretches_are_found() -> None:
    streaks = learnt(TaskSpec("code", 0.15, 0.8, copied=-0.5), 60)
    assert streaks.after_full[0] > 2.5
    assert streaks.after_other[0] < 0.8
    assert streaks.after_full[1] > 1.2


def test_requests_that_differ_are_not_taken_for_stretches() -> None:
    streaks = learnt(TaskSpec("chat", 0.5, 1.6, 0.0), 60)
    np.testing.assert_allclose([*streaks.after_full, *streaks.after_other], 1.0, atol=0.25)


def test_other_tasks_lend_while_there_is_little_of_ones_own() -> None:
    nothing = streaks_of(None, None, LAYOUT)
    assert nothing == Streaks()
    wide = LAYOUT.vector({"xt0": 64_000, "xf0": 16_000, "xa0": 6_400, "xb0": 1_600})
    thin = LAYOUT.vector({"xt0": 64, "xf0": 0})
    much = LAYOUT.vector({"xt0": 640_000, "xf0": 160_000, "xa0": 16_000, "xb0": 16_000})
    lent, own = streaks_of(thin, wide, LAYOUT), streaks_of(much, wide, LAYOUT)
    assert lent.after_full[0] > 1.3
    assert abs(own.after_full[0] - 1.0) < 0.02
