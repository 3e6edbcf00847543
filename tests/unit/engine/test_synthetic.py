"""Synthetic acceptance: the given profile comes out in the counts, real passes are run, and the mode is marked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.config import ConfigError
from tests.fixtures.core import make_core, random_model, request, run


def profile(folder: Path, content: Any) -> str:
    path = folder / "profile.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def test_the_profile_comes_out(tmp_path: Path) -> None:
    path = profile(tmp_path, {"*": [0.0], "code": [1.0, 0.5]})
    core = make_core(random_model("llama"), synthetic_acceptance=path, profile=False)
    assert core.synthetic
    asked = [
        request("code", [5, 6, 7], method="ngram", k=2, max_tokens=400, ignore_eos=True, task="code", seed=1),
        request("other", [5, 6, 7], method="ngram", k=2, max_tokens=40, ignore_eos=True, seed=2),
    ]
    answers = run(core, asked)
    code = answers["code"].metrics.speculative_decoding
    other = answers["other"].metrics.speculative_decoding
    assert code is not None
    assert other is not None
    rounds = code.num_spec_steps
    assert code.acceptance_histogram[0] <= 1  # a last round of one draft cannot fail: p1 is 1
    assert 0.35 < code.acceptance_histogram[2] / rounds < 0.65
    assert other.num_accepted_draft_tokens == 0
    assert len(answers["code"].tokens) == 400


def test_earnest_cores_are_not_marked() -> None:
    assert not make_core(random_model("llama")).synthetic


@pytest.mark.parametrize("content", ["{", "[]", {"code": [0.5]}, {"*": []}, {"*": [1.5]}, {"*": ["a"]}, {"*": 0.5}])
def test_a_bad_profile_is_refused(tmp_path: Path, content: Any) -> None:
    with pytest.raises(ConfigError, match="synthetic_acceptance"):
        make_core(random_model("llama"), synthetic_acceptance=profile(tmp_path, content))


def test_a_missing_profile_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        make_core(random_model("llama"), synthetic_acceptance=str(tmp_path / "none.json"))
