"""Speculative steps are compared with plain ones of the same backend, epoch and load."""

from __future__ import annotations

import pytest

from gateway.db import ActivitySums, CellActivity
from gateway.ops.costs import MIN_STEPS, costed_by_task, plain_steps
from gateway.types import CellKey


def cell(k, *, task="code", load=1, context="512", epoch="e1", backend="engine", **sums):
    method = "ngram" if k else "plain"
    return CellActivity(CellKey(backend, epoch, method, k, task, "0", context, load), ActivitySums(**sums))


def plain(steps, us, **where):
    return cell(0, undrafted=steps, plain_us=steps * us, **where)


SPEC = {"rounds": 10, "accepted": 20, "undrafted": 10, "draft_us": 1000, "verify_us": 300_000, "plain_us": 200_000}


def test_plain_time_of_all_tasks_at_the_same_load():
    cells = [plain(100, 20_000, task="chat"), plain(100, 30_000, task="code"), plain(500, 90_000, load=4)]
    assert plain_steps(cells) == {("engine", "e1", 1, "512"): 25_000, ("engine", "e1", 4, "512"): 90_000}


def test_each_load_against_its_own_plain_step():
    cells = [plain(100, 20_000), plain(100, 60_000, load=4), cell(4, **SPEC), cell(4, load=4, **SPEC)]
    costed = costed_by_task(cells)["code"]
    assert costed.expected_us == pytest.approx(40 * 20_000 + 40 * 60_000)
    assert costed.expected_rounds_us == pytest.approx(10 * 20_000 + 10 * 60_000)
    assert (costed.rounds, costed.time_us) == (20, 2 * 501_000)


def test_arms_of_one_task_add_up_and_tasks_stay_apart():
    cells = [plain(100, 20_000), cell(2, **SPEC), cell(4, **SPEC), cell(4, task="chat", **SPEC)]
    assert {task: sums.rounds for task, sums in costed_by_task(cells).items()} == {"code": 20, "chat": 10}


@pytest.mark.parametrize("where", [{"load": 2}, {"epoch": "e0"}, {"backend": "pool"}])
def test_plain_steps_of_another_place_do_not_count(where):
    assert costed_by_task([plain(100, 20_000, **where), cell(4, **SPEC)]) == {}


def test_too_few_plain_steps_do_not_count():
    assert plain_steps([plain(MIN_STEPS - 1, 20_000)]) == {}
    assert len(plain_steps([plain(MIN_STEPS, 20_000)])) == 1


def test_the_nearest_context_stands_in():
    cells = [plain(100, 20_000, context="512"), plain(100, 50_000, context="32k"), cell(4, context="2k", **SPEC)]
    assert costed_by_task(cells)["code"].expected_us == pytest.approx(40 * 20_000)


def test_then_what_the_decisions_expected_from_the_cost_table():
    alone = cell(4, **SPEC, expected_plain_us=40 * 15_000, expected_round_plain_us=10 * 15_000)
    assert costed_by_task([alone])["code"].expected_us == pytest.approx(40 * 15_000)
    assert costed_by_task([alone, plain(100, 20_000)])["code"].expected_us == pytest.approx(40 * 20_000)


def test_a_backend_without_step_times_is_left_out():
    assert costed_by_task([plain(100, 20_000), cell(4, rounds=10, accepted=20, undrafted=10)]) == {}
