"""Loading models from folders: what is read, and which error names which file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from engine.config import EngineConfig
from engine.errors import ModelError, TokenizerMismatchError
from engine.models import LoadedModel
from engine.models.load import check_tokenizers, kv_budget, kv_bytes_per_token, load_model, load_models
from tests.fixtures.models import byte_tokenizer, tiny_llama


@pytest.fixture
def copy(tiny_model_dir: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model_dir, tmp_path / "copy"))


def load(folder: Path | str) -> LoadedModel:
    return load_model(str(folder), EngineConfig(dtype="float32", device="cpu"))


def test_folder_is_loaded_with_its_facts(tiny_target: LoadedModel) -> None:
    assert tiny_target.name == "tiny-target"
    assert tiny_target.dtype == torch.float32
    assert tiny_target.eos_ids == {2}
    assert (tiny_target.max_len, tiny_target.vocab_size) == (1024, 259)
    logits = tiny_target.model(torch.tensor([[1, 5, 9]])).logits
    assert logits.shape == (1, 3, 259)


def test_kv_budget_follows_memory(tiny_target: LoadedModel) -> None:
    assert kv_bytes_per_token(tiny_target) == 2 * 2 * 2 * 16 * 4
    assert kv_budget(tiny_target, 32, 512 * 1000) == 1000
    assert kv_budget(tiny_target, 2, 1 << 40) == 2 * (1024 + 64)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_missing_file_is_named(copy: Path, name: str) -> None:
    (copy / name).unlink()
    with pytest.raises(ModelError, match=r"is missing|has no tokenizer") as caught:
        load(copy)
    assert str(copy) in str(caught.value)


@pytest.mark.parametrize("keep", [0, 4, 100, -1])
def test_truncated_weights_are_named(copy: Path, keep: int) -> None:
    path = copy / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ModelError, match="is damaged") as caught:
        load(copy)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_broken_json_is_named(copy: Path, name: str) -> None:
    (copy / name).write_text('{"model_type": ')
    with pytest.raises(ModelError, match="is damaged") as caught:
        load(copy)
    assert str(copy / name) in str(caught.value)


def test_unknown_architecture_is_a_model_error(copy: Path) -> None:
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"model_type": "no-such-model"}))
    with pytest.raises(ModelError, match="no-such-model"):
        load(copy)


@pytest.mark.parametrize("name", ["no-such-model", "./no/such/folder", "/no/such/folder"])
def test_unknown_name_says_what_was_expected(name: str) -> None:
    with pytest.raises(ModelError, match="expected SmolLM2-135M-Instruct, a folder"):
        load(name)


def test_unknown_device_is_a_model_error(tiny_model_dir: Path) -> None:
    with pytest.raises(ModelError, match="device 'warp'"):
        load_model(str(tiny_model_dir), EngineConfig(device="warp"))


def test_draft_with_the_same_tokens_is_accepted(tiny_model_dir: Path, tiny_draft_dir: Path) -> None:
    target, draft = load_models(
        EngineConfig(model=str(tiny_model_dir), draft_model=str(tiny_draft_dir), dtype="float32", device="cpu")
    )
    assert draft is not None
    assert draft.model.config.num_hidden_layers == 1
    assert target.model.config.num_hidden_layers == 2


def test_padding_alone_may_differ(tiny_target: LoadedModel, tmp_path: Path) -> None:
    tiny_llama(tmp_path / "wide", seed=4, vocab_size=272)
    draft = load(tmp_path / "wide")
    assert draft.vocab_size == 272
    check_tokenizers(tiny_target, draft)


def test_other_tokens_are_refused(tiny_target: LoadedModel, tmp_path: Path) -> None:
    tiny_llama(tmp_path / "other", seed=4, vocab_size=272)
    byte_tokenizer(tmp_path / "other", extra_tokens=("hello",))
    with pytest.raises(TokenizerMismatchError, match="token 259 is nothing in the target and 'hello' in the draft"):
        check_tokenizers(tiny_target, load(tmp_path / "other"))
