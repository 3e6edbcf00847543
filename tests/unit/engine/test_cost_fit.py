"""The fit of the simulator's cost file: a known truth is found again, bounds hold, the file reads back and is whole."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import numpy as np
import pytest
import yaml
from scipy.optimize import nnls

from cli.simulation.costs import read_costs
from engine.config import ConfigError, EngineConfig
from engine.cost_fit import fit_costs, nonnegative_least_squares, render, write_costs
from engine.messages import CostCell, CostTable
from tests.fixtures.core import make_core, random_model

CONTEXTS = {0: 96, 512: 640}
TARGET = (0.02, 0.0008, 2e-6)
DRAFTERS = {"ngram": (1e-5, 2e-6, 0.0), "draft_model": (0.001, 0.006, 4e-7)}


def table(*, noise: float = 0.0, batches: tuple[int, ...] = (1, 2, 8, 32)) -> CostTable:
    rng = random.Random(3)

    def at(fixed: float, tokens: int, per_token: float, kv: int, per_kv: float) -> float:
        return (fixed + tokens * per_token + kv * per_kv) * (1 + rng.uniform(-noise, noise))

    cells = []
    for (method, costs), batch, edge, k in itertools.product(DRAFTERS.items(), batches, CONTEXTS, (1, 2, 4, 8)):
        kv = batch * CONTEXTS[edge]
        cells.append(
            CostCell(
                batch=batch,
                context=edge,
                k=k,
                method=method,
                draft_s=at(costs[0], k + 1, costs[1], kv, costs[2]),
                verify_s=at(TARGET[0], batch * (k + 1), TARGET[1], kv, TARGET[2]),
                plain_s=at(TARGET[0], batch, TARGET[1], kv, TARGET[2]),
                n=4,
            )
        )
    return CostTable(cells)


def test_the_truth_behind_exact_cells_is_found() -> None:
    fit = fit_costs(table(), CONTEXTS)
    assert fit is not None
    assert (fit.target.fixed, fit.target.per_token, fit.target.per_kv_token) == pytest.approx(TARGET, rel=1e-6)
    for method, truth in DRAFTERS.items():
        line = fit.drafters[method]
        assert (line.fixed, line.per_token, line.per_kv_token) == pytest.approx(truth, rel=1e-6, abs=1e-12)
    assert fit.target.error < 1e-9


def test_noise_of_a_tenth_moves_the_lines_little() -> None:
    fit = fit_costs(table(noise=0.1), CONTEXTS)
    assert fit is not None
    assert (fit.target.fixed, fit.target.per_token) == pytest.approx(TARGET[:2], rel=0.1)
    assert fit.drafters["draft_model"].per_token == pytest.approx(0.006, rel=0.1)
    assert 0.01 < fit.target.error < 0.1


def test_a_preempted_tenth_of_the_cells_moves_the_lines_little() -> None:
    cells = table(noise=0.05).cells
    for cell in cells[::10]:
        cell.verify_s *= 6
        cell.draft_s *= 6
    cells[0].plain_s *= 6
    fit = fit_costs(CostTable(cells), CONTEXTS)
    assert fit is not None
    assert (fit.target.fixed, fit.target.per_token) == pytest.approx(TARGET[:2], rel=0.15)
    assert fit.drafters["draft_model"].per_token == pytest.approx(0.006, rel=0.1)


def test_one_batch_and_one_context_still_give_the_times_measured() -> None:
    cells = [cell for cell in table(batches=(4,)).cells if cell.context == 0]
    fit = fit_costs(CostTable(cells), CONTEXTS)
    assert fit is not None
    for cell in cells:
        tokens = fit.target.fixed + 4 * (cell.k + 1) * fit.target.per_token + 4 * 96 * fit.target.per_kv_token
        assert tokens == pytest.approx(cell.verify_s, rel=1e-6)


def test_what_would_be_negative_is_zero() -> None:
    cells = table().cells
    for cell in cells:
        cell.draft_s = 0.01 / (cell.k + 1)  # falls with the draft length
    fit = fit_costs(CostTable(cells), CONTEXTS)
    assert fit is not None
    assert fit.drafters["ngram"].per_token == 0.0
    assert fit.drafters["ngram"].fixed > 0.0


@pytest.mark.parametrize("seed", range(20))
def test_the_solver_agrees_with_scipy(seed: int) -> None:
    rng = np.random.default_rng(seed)
    design = rng.random((12, 3))
    wanted = rng.normal(size=12)
    found = nonnegative_least_squares(design, wanted)
    assert found == pytest.approx(nnls(design, wanted)[0], abs=1e-9)


def test_the_simulator_reads_the_file(tmp_path: Path) -> None:
    path = tmp_path / "costs.yaml"
    assert write_costs(path, table(), CONTEXTS)
    costs = read_costs(path, "draft_model", 8)
    assert costs.plain_s(8, 640) == pytest.approx(0.02 + 8 * 0.0008 + 8 * 640 * 2e-6, rel=1e-5)
    alpha, beta = costs.ratios("draft_model", 4, 8, 640)
    plain = costs.plain_s(8, 640)
    assert alpha * plain == pytest.approx(0.001 + 5 * 0.006 + 8 * 640 * 4e-7, rel=1e-5)
    assert (1 + beta) * plain == pytest.approx(0.02 + 40 * 0.0008 + 8 * 640 * 2e-6, rel=1e-5)
    loaded = yaml.safe_load(path.read_text("utf-8"))
    assert isinstance(loaded["target"]["per_kv_token"], float)
    assert set(loaded) == {"overhead", "target", "drafters"}


def test_nothing_measured_writes_nothing(tmp_path: Path) -> None:
    assert not write_costs(tmp_path / "costs.yaml", CostTable([]), CONTEXTS)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_replaced_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "costs.yaml").mkdir()
    assert not write_costs(tmp_path / "costs.yaml", table(), CONTEXTS)
    assert [path.name for path in tmp_path.iterdir()] == ["costs.yaml"]
    assert not write_costs(tmp_path / "missing" / "costs.yaml", table(), CONTEXTS)


def test_the_text_says_how_well_it_fits() -> None:
    fit = fit_costs(table(), CONTEXTS)
    assert fit is not None
    assert (
        "64 cells; median error, relative to the time or in plain steps: target 0.000, draft_model 0.000, ngram 0.000"
        in render(fit)
    )


def test_a_core_writes_the_file_once_it_is_profiled(tmp_path: Path) -> None:
    path = tmp_path / "costs.yaml"
    loaded = random_model("llama", layers=1)
    core = make_core(loaded, loaded, models_dir=str(tmp_path), max_batch=1, max_k=2, costs_out=str(path))
    assert core.profile_once()
    assert not path.exists()
    while core.profile_once():
        pass
    for method in ("ngram", "suffix", "draft_model"):
        costs = read_costs(path, method, 1)
        assert costs.plain_s(1, 100) > 0


@pytest.mark.parametrize("value", ["missing/costs.yaml", "."])
def test_a_place_that_cannot_take_the_file_stops_the_start(value: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="costs_out: expected a file in a folder that exists"):
        EngineConfig(costs_out=str(tmp_path / value))
