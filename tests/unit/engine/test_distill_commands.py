"""The commands in a row, as a user runs them: generate, train, evaluate, export, and the engine with the result."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from cli.main import main
from engine.config import EngineConfig
from engine.models.load import load_models


def invoke(*arguments: str) -> str:
    result = CliRunner().invoke(main, ["distill", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.verify
def test_from_prompts_to_a_judged_draft(tiny_model_dir: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    rows = [
        {"id": f"{task}-{at}", "task": task, "messages": [{"role": "user", "content": f"{task} {at} " * (at % 5 + 1)}]}
        for task in ("chat", "code")
        for at in range(20)
    ]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    work, out = str(tmp_path / "work"), tmp_path / "draft"
    model = ("--model", str(tiny_model_dir), "--threads", "1")
    data = ("generate", "--work", work, "--prompts", str(prompts), "--held-out-share", "0.3", "--max-tokens", "24")
    invoke(*data, "--temperature", "0", "--temperature", "0.8", "--batch", "8", *model)
    small = ("--epochs", "1", "--vocab", "64", "--batch-tokens", "256", "--judge-every", "2")
    invoke("train", "--work", work, "--out", str(out), *small, *model)
    invoke("train", "--work", work, "--out", str(out / "own"), "--kind", "standalone", *small, *model)
    head, page = out / "eagle.safetensors", tmp_path / "page.html"
    judged = ("--pairs", "2", "--tokens", "8", "--page", str(page), "--json", *model)
    report = json.loads(invoke("evaluate", "--work", work, "--head", str(head), *judged))
    assert set(report["acceptance"]) == {"eagle", "ngram", "hybrid"}
    assert set(report["acceptance"]["eagle"]) == {"0", "0.8"}
    assert {cost["batch"] for cost in report["costs"]} == {1, 8}
    assert set(report["measured"]["eagle"]) == {"all", "chat", "code"}
    assert set(report["advice"]) == {"all", "chat", "code"}
    assert page.read_text().count("<svg") >= 4
    assert "http" not in page.read_text().replace("http-equiv", "")
    exported = tmp_path / "model"
    invoke("export", str(exported), "--draft", str(out / "own" / "draft.safetensors"), *model)
    _, draft = load_models(EngineConfig(model=str(tiny_model_dir), draft_model=str(exported)))
    assert draft is not None
    assert draft.model.config.num_hidden_layers == 1
    text = invoke("evaluate", "--work", work, "--draft-model", str(exported), "--no-costs", "--pairs", "0", *model)
    assert "tokens per round" in text
