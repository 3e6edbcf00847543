"""llama.cpp's real server with a draft that `breakeven distill export --gguf` wrote, before and behind the gateway.

Half a minute, so that `make test` leaves it out: what such a file holds is compared with torch there in
tests/integration/engine/test_distill_gguf.py, and what a draft of llama.cpp's does is counted in
test_llamacpp_restart.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from cli.main import main
from engine.config import DEFAULT_MODEL, EngineConfig
from engine.distill.standalone import StandaloneDraft
from engine.models.load import load_model
from tests.fixtures.llamacpp import GGUF, MODEL, llama_server
from tests.fixtures.pools import ask, counts_agree, two_pools
from tests.fixtures.servers import GatewayServer, wait_until

pytestmark = [pytest.mark.model, pytest.mark.verify, pytest.mark.timeout(900)]
PROMPTS = ("Name three colours.", "Say the word yes eight times.")


def _exported(folder: Path) -> Path:
    """Export a draft of the target's first layers, as training starts from, and return its GGUF."""
    target = load_model(DEFAULT_MODEL, EngineConfig(dtype="float32"))
    StandaloneDraft(target, 24, torch.arange(100)).write(folder / "draft.safetensors")
    arguments = ["distill", "export", str(folder / "m"), "--draft", str(folder / "draft.safetensors")]
    result = CliRunner().invoke(main, [*arguments, "--dtype", "float32", "--gguf", str(GGUF)])
    assert result.exit_code == 0, result.output
    return folder / "m" / "draft.gguf"


def test_a_distilled_draft_is_counted_and_changes_no_answer(
    start_gateway: Callable[..., GatewayServer], tmp_path: Path
) -> None:
    draft = _exported(tmp_path)
    with llama_server(GGUF, "--draft", str(draft)) as (spec, _), llama_server(GGUF) as (plain, _):
        gateway = two_pools(start_gateway, "llamacpp", (spec, "draft_model-k4"), plain)
        for prompt in PROMPTS:
            answers = [
                ask(gateway, arm, prompt, model=MODEL, max_tokens=24) for arm in ("spec/draft_model-k4", "plain/plain")
            ]
            assert [status for status, _, _ in answers] == [200, 200]
            texts = [json.loads(raw)["choices"][0]["message"]["content"] for _, _, raw in answers]
            assert texts[0] == texts[1]
        wait_until(lambda: len(gateway.records) == 2 * len(PROMPTS))
        assert all(record.tpot_s for record in gateway.records)
        counts_agree(gateway, spec, "llamacpp", least=5)
