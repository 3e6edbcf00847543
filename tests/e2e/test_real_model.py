"""The main job on the real model: `breakeven serve` without any setting, and the README's request as printed."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from tests.e2e.served import serve
from tests.repo.tree import text

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    with serve(tmp_path_factory.mktemp("real") / "data", ready_s=240) as running:
        yield running


def test_the_readmes_request_gets_a_real_answer(real):
    code = re.search(r"```python\n(.+?)```", text("README.md"), re.S)[1].replace("http://127.0.0.1:8000", real.url)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    *answer, task, path, reason = done.stdout.splitlines()
    assert "ada" in "".join(answer).lower()  # a random model would not say so
    assert task == "structured"
    assert reason.startswith(path)


def test_the_demo_measures_both_paths(real):
    done = real.breakeven("demo", "--json", "--prompts", "1", "--concurrency", "1", "--max-tokens", "12")
    assert done.returncode == 0, done.stderr
    got = json.loads(done.stdout)
    assert got["totals"]["pairs_run"] == 8
    assert got["totals"]["errors"] == []
    copied = [row for row in got["tasks"] if row["a"] is not None]
    assert copied  # editing code and extracting data repeat their prompts: something must have been drafted
    assert all(row["a"] >= 1 and row["break_even"] > 0 for row in copied)
