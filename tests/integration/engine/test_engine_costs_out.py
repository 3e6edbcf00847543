"""`--costs-out`: the engine leaves the simulator's cost file, after profiling, at exit and at the next start."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.simulation.costs import read_costs
from tests.fixtures.models import EngineProcess, run_engine, stop


@pytest.mark.verify
def test_the_cost_file_is_written_and_renewed(
    tmp_path: Path, tiny_model_dir: Path, start_engine: Callable[..., EngineProcess]
) -> None:
    path = tmp_path / "costs.yaml"
    options = ("--model", str(tiny_model_dir), "--max-batch", "1", "--max-k", "1", "--models-dir", str(tmp_path))
    engine = start_engine(*options, "--costs-out", str(path))
    deadline = time.monotonic() + 60
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert read_costs(path, "ngram", 1).plain_s(1, 0) > 0
    path.unlink()
    assert stop(engine.process) == 0
    assert read_costs(path, "suffix", 1).plain_s(1, 0) > 0
    path.unlink()
    start_engine(*options, "--costs-out", str(path))  # the profile was kept
    assert path.exists()


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path, tiny_model_dir: Path) -> None:
    process, log = run_engine("--model", str(tiny_model_dir), "--costs-out", str(tmp_path / "no" / "costs.yaml"))
    try:
        assert process.wait(120) == 1
        assert "costs_out: expected a file in a folder that exists" in log.read_text("utf-8")
    finally:
        stop(process)
        log.unlink()
