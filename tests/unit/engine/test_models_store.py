"""The built-in model on disk: conversion of a GGUF, checks of what a later start finds, repair."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from gguf import GGUFWriter, TokenType

from cli.models import models
from engine.config import EngineConfig
from engine.errors import ModelError
from engine.models import convert, store
from engine.models.load import cpu_has_bfloat16, load_model, pick_dtype
from engine.models.resident import release_file_pages
from tests.fixtures.models import CHATML

NAME = "SmolLM2-135M-Instruct"
HEADS, KV_HEADS, WIDTH, INNER, LAYERS = 2, 1, 32, 64, 2


def write_gguf(path: Path) -> dict[str, np.ndarray]:
    """Write a random Llama as a GGUF with a byte-level vocabulary and return its tensors."""
    random = np.random.default_rng(0)
    pieces = ["<|pad|>", "<|im_start|>", "<|im_end|>", *map(chr, range(33, 127)), "Ġ", "Ċ", "ab", "cd"]
    shapes = {"token_embd.weight": (len(pieces), WIDTH), "output_norm.weight": (WIDTH,)}
    for layer in range(LAYERS):
        shapes |= {
            f"blk.{layer}.attn_norm.weight": (WIDTH,),
            f"blk.{layer}.attn_q.weight": (WIDTH, WIDTH),
            f"blk.{layer}.attn_k.weight": (WIDTH * KV_HEADS // HEADS, WIDTH),
            f"blk.{layer}.attn_v.weight": (WIDTH * KV_HEADS // HEADS, WIDTH),
            f"blk.{layer}.attn_output.weight": (WIDTH, WIDTH),
            f"blk.{layer}.ffn_norm.weight": (WIDTH,),
            f"blk.{layer}.ffn_gate.weight": (INNER, WIDTH),
            f"blk.{layer}.ffn_up.weight": (INNER, WIDTH),
            f"blk.{layer}.ffn_down.weight": (WIDTH, INNER),
        }
    tensors = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(len(pieces))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(pieces)
    writer.add_token_types([TokenType.CONTROL] * 3 + [TokenType.NORMAL] * (len(pieces) - 3))
    writer.add_token_merges(["a b", "c d"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    writer.add_chat_template(CHATML)
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A models folder in which the built-in model's place is taken by a tiny one."""
    folder = tmp_path_factory.mktemp("models") / NAME
    folder.mkdir()
    write_gguf(folder / "tiny.gguf")
    convert.main(folder / "tiny.gguf", folder)
    return folder.parent


@pytest.fixture
def weights(home: Path) -> Iterator[Path]:
    """The fp32 weights; put back after the test."""
    path = home / NAME / "float32" / "model.safetensors"
    kept = path.read_bytes()
    yield path
    path.unlink(missing_ok=True)  # not in place: models of other tests may have it mapped
    path.write_bytes(kept)


def config(home: Path, dtype: str = "float32") -> EngineConfig:
    return EngineConfig(models_dir=str(home), dtype=dtype, device="cpu")  # type: ignore[arg-type]


def test_conversion_keeps_every_weight(home: Path, tmp_path: Path) -> None:
    tensors = write_gguf(tmp_path / "again.gguf")
    loaded = load_model(NAME, config(home))
    assert loaded.name == NAME
    assert loaded.eos_ids == {2}
    assert loaded.max_len == 128
    model = loaded.model.model
    assert np.array_equal(model.embed_tokens.weight.numpy(), tensors["token_embd.weight"])
    assert np.array_equal(model.layers[1].mlp.down_proj.weight.numpy(), tensors["blk.1.ffn_down.weight"])
    assert loaded.tokenizer.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False).startswith("<|im_")


def test_bfloat16_is_a_copy_rounded_once(home: Path) -> None:
    exact, rounded = load_model(NAME, config(home)), load_model(NAME, config(home, "bfloat16"))
    assert rounded.dtype == torch.bfloat16
    for a, b in zip(exact.model.parameters(), rounded.model.parameters(), strict=True):
        assert torch.equal(a.to(torch.bfloat16), b)


def test_auto_takes_bfloat16_where_the_cpu_has_it() -> None:
    expected = torch.bfloat16 if cpu_has_bfloat16() else torch.float32
    assert pick_dtype("auto", torch.device("cpu")) == expected
    assert pick_dtype("auto", torch.device("cuda")) == torch.bfloat16
    assert pick_dtype("float32", torch.device("cuda")) == torch.float32


def test_released_pages_come_back_from_the_file(home: Path) -> None:
    loaded = load_model(NAME, config(home))
    before = [parameter.clone() for parameter in loaded.model.parameters()]
    release_file_pages()
    for kept, parameter in zip(before, loaded.model.parameters(), strict=True):
        assert torch.equal(kept, parameter)


def test_a_truncated_file_is_named(home: Path, weights: Path) -> None:
    data = weights.read_bytes()
    weights.unlink()
    weights.write_bytes(data[:-1])
    with pytest.raises(ModelError, match=r"is damaged \(\d+ bytes instead of") as caught:
        load_model(NAME, config(home))
    assert str(weights) in str(caught.value)
    assert "breakeven models fetch" in str(caught.value)


def test_a_flipped_bit_is_found(home: Path, weights: Path) -> None:
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.unlink()
    weights.write_bytes(data)
    with pytest.raises(ModelError, match="its hash does not match"):
        load_model(NAME, config(home))


def test_a_missing_file_is_named_and_not_fetched_silently(home: Path, weights: Path) -> None:
    weights.unlink()
    with pytest.raises(ModelError, match="is missing"):
        load_model(NAME, config(home))


def test_a_broken_manifest_is_named(home: Path) -> None:
    manifest = home / NAME / "float32" / store.MANIFEST
    kept = manifest.read_text()
    for broken in ("", "{}", '{"files": 5}', '{"files": {"x": {}}}'):
        manifest.write_text(broken)
        with pytest.raises(ModelError, match=f"{store.MANIFEST} is damaged"):
            store.check(manifest.parent)
    manifest.write_text(kept)
    store.check(manifest.parent)


def test_the_list_says_what_is_there(home: Path, tmp_path: Path, weights: Path) -> None:
    run = CliRunner().invoke
    assert f"{NAME}  ready" in run(models, ["list", "--models-dir", str(home)]).output
    assert f"{NAME}  not fetched" in run(models, ["list", "--models-dir", str(tmp_path)]).output
    weights.unlink()
    assert "is missing" in run(models, ["list", "--models-dir", str(home)]).output


def test_fetch_explains_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    done = CliRunner().invoke(models, ["fetch", "--models-dir", str(tmp_path)])
    assert done.exit_code == 1
    assert "Connection refused" in done.stderr
    assert CliRunner().invoke(models, ["fetch", "other"]).exit_code == 2


@pytest.mark.model
@pytest.mark.slow
def test_the_built_in_model_answers() -> None:
    loaded = load_model(NAME, EngineConfig(dtype="bfloat16", device="cpu"))
    ids = loaded.tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    out = loaded.model.generate(**ids, max_new_tokens=12, do_sample=False)
    assert "Paris" in loaded.tokenizer.decode(out[0])
    manifest = json.loads((store.models_dir() / NAME / "bfloat16" / store.MANIFEST).read_text())
    assert manifest["source_sha256"] == store.BUILT_IN[NAME].member_sha256
