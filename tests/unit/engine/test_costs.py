"""The cost table: medians, shared verify samples, break-even by load and context, the idle profile, the kept file."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from engine.costs import CostModel, StepTiming, context_edge
from engine.kept_costs import MAX_AGE_S, cache_path
from engine.profiler import Point, mixed_points
from tests.fixtures.core import make_core, random_model, request, run


def filled() -> CostModel:
    costs = CostModel()
    for batch, scale in ((1, 1.0), (8, 2.0)):
        for _ in range(3):
            costs.observe(batch=batch, context=100, k=0, method="plain", timing=StepTiming(0.0, 0.010 * scale))
            costs.observe(
                batch=batch, context=100, k=4, method="ngram", timing=StepTiming(0.001, 0.012 * scale * scale)
            )
    return costs


def test_one_slow_step_moves_nothing() -> None:
    costs = filled()
    costs.observe(batch=1, context=100, k=4, method="ngram", timing=StepTiming(0.5, 9.0))
    cell = costs.table().cells[0]
    assert (cell.batch, cell.context, cell.k, cell.method) == (1, 0, 4, "ngram")
    assert (cell.draft_s, cell.verify_s, cell.plain_s) == (0.001, 0.012, 0.010)


def test_a_draft_length_that_is_not_used_keeps_its_ratio_where_the_machine_slows_down() -> None:
    costs = filled()
    costs.observe(batch=1, context=100, k=8, method="ngram", timing=StepTiming(0.002, 0.015))
    for _ in range(60):
        costs.observe(batch=1, context=100, k=0, method="plain", timing=StepTiming(0.0, 0.040))
        costs.observe(batch=1, context=100, k=4, method="ngram", timing=StepTiming(0.004, 0.060))
    cells = {cell.k: cell for cell in costs.table().cells if cell.batch == 1}
    assert (cells[4].plain_s, cells[4].draft_s, cells[4].verify_s) == (0.040, 0.004, 0.060)
    assert (cells[8].plain_s, cells[8].draft_s, cells[8].verify_s) == pytest.approx((0.040, 0.008, 0.060))
    assert dict(costs.break_even("ngram", 1, 100)) == pytest.approx({4: 1.6, 8: 1.7})


def test_a_round_is_set_against_the_plain_steps_just_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("engine.costs.time", SimpleNamespace(monotonic=lambda: clock[0], time=time.time))
    costs = filled()
    costs.profiled = True
    for _ in range(50):  # one round at the end of each stretch: the plain steps before it serve the comparison alone
        clock[0] += 10
        for _ in range(5):
            costs.observe(batch=1, context=100, k=0, method="plain", timing=StepTiming(0.0, 0.100))
        costs.observe(batch=1, context=100, k=4, method="ngram", timing=StepTiming(0.0, 0.150))
    assert costs.break_even("ngram", 1, 100) == [(4, pytest.approx(1.5))]


def test_verify_samples_serve_every_method() -> None:
    costs = filled()
    costs.observe_draft(batch=8, context=100, k=4, method="draft_model", seconds=0.02)
    cells = {(cell.batch, cell.method): cell for cell in costs.table().cells}
    assert cells[8, "draft_model"].verify_s == cells[8, "ngram"].verify_s == 0.048
    assert (1, "draft_model") not in cells


def test_no_cell_without_its_plain_counterpart() -> None:
    costs = CostModel()
    costs.observe(batch=2, context=0, k=4, method="ngram", timing=StepTiming(0.001, 0.012))
    assert costs.table().cells == []


@pytest.mark.parametrize(("load", "x"), [(1, 1.3), (2, 1.3), (6, 2.45), (100, 2.45)])
def test_break_even_at_the_nearest_load(load: int, x: float) -> None:
    assert filled().break_even("ngram", load, 5000) == [(4, pytest.approx(x))]


def test_break_even_of_what_was_never_measured() -> None:
    assert filled().break_even("suffix", 1, 0) == []


@pytest.mark.parametrize(("tokens", "edge"), [(0, 0), (511, 0), (512, 512), (2047, 512), (40_000, 32768)])
def test_context_bands(tokens: int, edge: int) -> None:
    assert context_edge(tokens) == edge


def test_kept_costs_come_back(tmp_path: Path) -> None:
    path = cache_path(tmp_path, "model", 1)
    filled().save(path)
    again = CostModel()
    assert again.load(path)
    assert again.profiled
    kept = [(cell.batch, cell.k, cell.draft_s, cell.verify_s, cell.plain_s) for cell in again.table().cells]
    assert kept == [(cell.batch, cell.k, cell.draft_s, cell.verify_s, cell.plain_s) for cell in filled().table().cells]
    assert path != cache_path(tmp_path, "model", 2)


def test_kept_costs_of_unlike_rows_come_back(tmp_path: Path) -> None:
    costs = filled()
    for drafted, seconds in ((4, 0.028), (16, 0.052)):
        costs.observe_mixed(batch=8, context=100, drafted=drafted, seconds=seconds)
    costs.save(tmp_path / "costs.json")
    again = CostModel()
    assert again.load(tmp_path / "costs.json")
    line = again.mixed_line(8, 100)
    assert line is not None
    assert (line.fixed, line.per_token) == pytest.approx((0.0, 0.1))  # 20 ms a plain step, 28 and 52 with drafts
    assert [(cell.batch, cell.drafted, cell.n) for cell in again.table().mixed] == [(8, 4, 1), (8, 16, 1)]


def test_steps_with_unlike_rows_count_beside_plain_ones_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The profile says 1.1 plain steps for 8 tokens; serving shows 1.5, a slow minute without plain steps nothing."""
    clock = [100.0]
    monkeypatch.setattr("engine.costs.time", SimpleNamespace(monotonic=lambda: clock[0]))
    costs = filled()
    costs.observe_mixed(batch=8, context=100, drafted=8, seconds=0.022)
    costs.profiled = True
    for _ in range(40):
        clock[0] += 10
        costs.observe_mixed(batch=8, context=100, drafted=8, seconds=0.500)
    line = costs.mixed_line(8, 100)
    assert line is not None
    assert line.at(8) == pytest.approx(0.1)
    for _ in range(5):
        clock[0] += 10
        costs.observe(batch=7, context=100, k=0, method="plain", timing=StepTiming(0.0, 0.100))
        costs.observe_mixed(batch=7, context=100, drafted=8, seconds=0.150)
    line = costs.mixed_line(8, 100)
    assert line is not None
    assert line.at(8) == pytest.approx(0.5, abs=0.05), "steps of seven tell of eight"


def test_without_steps_with_unlike_rows_the_line_goes_through_the_others() -> None:
    costs = filled()
    assert costs.mixed_line(8, 100) is None, "not profiled yet"
    costs.profiled = True
    line = costs.mixed_line(8, 100)
    assert line is not None
    assert line.at(32) == pytest.approx(1.4)  # 48 ms against 20


@pytest.mark.parametrize(
    ("point", "lengths"),
    [
        (Point(4, 96, 3), [3, 3, 3, 3]),
        (Point(4, 96, 3, 1), [3, 0, 0, 0]),
        (Point(8, 96, 2, 4), [2, 0, 2, 0, 2, 0, 2, 0]),
        (Point(2, 96, 1, 1), [1, 0]),
    ],
)
def test_rows_that_draft_lie_among_the_others(point: Point, lengths: list[int]) -> None:
    assert point.lengths == lengths


def test_steps_with_unlike_rows_that_are_measured() -> None:
    assert mixed_points(1, 96, 8) == []
    assert {sum(point.lengths) for point in mixed_points(8, 96, 8)} == {2, 4, 8, 16}
    assert {sum(point.lengths) for point in mixed_points(2, 96, 1)} == {1}


@pytest.mark.parametrize("content", [b"", b"{", b'{"cells": [{"batch": "x"}]}'])
def test_a_broken_file_is_measured_anew(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "costs.json"
    path.write_bytes(content)
    assert not CostModel().load(path)


def test_an_old_file_is_measured_anew(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    filled().save(path)
    os.utime(path, (time.time(), time.time() - MAX_AGE_S - 60))
    assert not CostModel().load(path)


def test_a_folder_that_cannot_be_written_is_no_failure(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    filled().save(tmp_path / "file" / "costs.json")
    assert "step costs are not kept" in caplog.text


def test_idle_profile_fills_every_method_and_is_kept(tmp_path: Path) -> None:
    loaded = random_model("llama")
    core = make_core(loaded, random_model("llama", seed=1), models_dir=str(tmp_path), max_batch=2, max_k=2)
    pairs = 0
    while core.profile_once():
        pairs += 1
    assert pairs > 8
    assert core.stats().profiled
    assert core.stats().kv_tokens_used == 0
    cells = core.costs().cells
    assert {(cell.batch, cell.context, cell.k, cell.method) for cell in cells} == {
        (batch, context, k, method)
        for batch in (1, 2)
        for context in (0, 512)
        for k in (1, 2)
        for method in ("ngram", "suffix", "draft_model", "hybrid")
    }
    assert all(cell.verify_s > 0 and cell.plain_s > 0 and cell.n >= 4 for cell in cells)
    mixed = core.costs().mixed
    assert {(cell.batch, cell.context, cell.drafted) for cell in mixed} == {
        (2, context, k) for context in (0, 512) for k in (1, 2)
    }
    again = make_core(loaded, random_model("llama", seed=1), models_dir=str(tmp_path), max_batch=2, max_k=2)
    assert not again.profile_once()
    assert len(again.costs().cells) == len(cells)
    assert len(again.costs().mixed) == len(mixed)


def test_serving_refines_the_table() -> None:
    loaded = random_model("llama")
    core = make_core(loaded, loaded, profile=False)
    assert not core.profile_once()
    run(core, [request("a", [5, 6, 7] * 5, method="draft_model", k=2, ignore_eos=True)])
    run(core, [request("b", [5, 6, 7] * 5, ignore_eos=True)])
    assert (1, 2, "draft_model") in {(cell.batch, cell.k, cell.method) for cell in core.costs().cells}


def test_serving_refines_what_unlike_rows_cost() -> None:
    core = make_core(random_model("llama"), profile=False)
    text = [5, 6, 7, 8] * 10
    core.add(request("plain", text, max_tokens=30, ignore_eos=True))
    core.add(request("drafts", text, method="ngram", k=3, max_tokens=60, ignore_eos=True))
    run(core, [])
    assert core.costs().mixed, "plain steps and drafts were seen at a batch of two"
    assert all(cell.batch == 2 and 1 <= cell.drafted <= 3 for cell in core.costs().mixed)


def test_once_profiled_only_alternating_steps_count() -> None:
    costs = filled()
    costs.profiled = True
    for _ in range(100):
        costs.observe(batch=1, context=100, k=0, method="plain", timing=StepTiming(0.0, 5.0))
    assert costs.table().cells[0].plain_s == 0.010
    costs = filled()
    costs.profiled = True
    for _ in range(100):
        costs.observe(batch=1, context=100, k=0, method="plain", timing=StepTiming(0.0, 5.0))
        costs.observe(batch=1, context=100, k=4, method="ngram", timing=StepTiming(0.0, 7.0))
    cell = costs.table().cells[0]
    assert (cell.plain_s, cell.verify_s) == (5.0, 7.0)
