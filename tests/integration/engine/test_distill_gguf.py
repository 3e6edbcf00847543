"""A draft for llama.cpp: what `distill export --gguf` writes says there what the exported folder says in torch."""

from __future__ import annotations

import json
import math
import urllib.request
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from cli.main import main
from engine.config import DEFAULT_MODEL, EngineConfig
from engine.distill.standalone import StandaloneDraft
from engine.models import LoadedModel
from engine.models.load import load_model
from tests.fixtures.core import make_core, request, run
from tests.fixtures.llamacpp import GGUF, llama_server

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def target() -> LoadedModel:
    return load_model(DEFAULT_MODEL, EngineConfig(dtype="float32"))


def test_the_draft_that_comes_with_the_model_says_the_same_in_torch_and_llamacpp(
    target: LoadedModel, tmp_path: Path
) -> None:
    """Exported with no more than a folder's name, it drafts here, too, and some of it holds."""
    folder = tmp_path / "model"
    result = CliRunner().invoke(main, ["distill", "export", str(folder), "--dtype", "float32", "--gguf", str(GGUF)])
    assert result.exit_code == 0, result.output
    draft = load_model(str(folder), EngineConfig(dtype="float32"))
    prompt = target.tokenizer.encode("The capital of France is Paris, and the capital of")
    with torch.inference_mode():
        want = torch.log_softmax(draft.model(torch.tensor([prompt])).logits[0, -1], dim=-1)
    with llama_server(folder / "draft.gguf") as (url, _):
        body = {"prompt": prompt, "n_predict": 1, "temperature": 0, "n_probs": 10}
        asked = urllib.request.Request(f"{url}/completion", json.dumps(body).encode())
        found = json.loads(urllib.request.urlopen(asked, timeout=60).read())["completion_probabilities"][0]
    best = [int(token) for token in want.topk(10).indices]
    assert found["top_logprobs"][0]["id"] == best[0]
    for row in found["top_logprobs"]:
        assert math.isclose(row["logprob"], float(want[row["id"]]), abs_tol=0.15)
    asked_of = [request(method, prompt, method=method, k=k) for method, k in (("plain", 0), ("draft_model", 2))]
    answers = run(make_core(target, draft), asked_of)
    assert answers["draft_model"].tokens == answers["plain"].tokens
    assert answers["draft_model"].metrics.speculative_decoding.num_accepted_draft_tokens > 0


def test_another_models_gguf_is_refused(target: LoadedModel, tmp_path: Path) -> None:
    StandaloneDraft(target, 1, torch.arange(100)).write(tmp_path / "draft.safetensors")
    (tmp_path / "no.gguf").write_bytes(b"GGUF")
    arguments = ["distill", "export", str(tmp_path / "m"), "--draft", str(tmp_path / "draft.safetensors")]
    result = CliRunner().invoke(main, [*arguments, "--gguf", str(tmp_path / "no.gguf")])
    assert result.exit_code == 1
    assert "no.gguf: expected the target's GGUF" in result.output
    assert not any((tmp_path / "m").glob("*"))
