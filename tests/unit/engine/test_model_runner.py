"""Packed passes give transformers' logits, whatever the rows' lengths, chunks and roll-backs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from engine.attention import RowInput
from engine.errors import ModelError
from engine.kv_cache import KVPool
from engine.lean_runner import LeanRunner, Norm, is_lean
from engine.model_runner import ModelRunner, TransformersRunner, kv_shape_of, make_runner
from engine.models import LoadedModel
from tests.fixtures.core import SHAPES, random_model


@torch.inference_mode()
def reference(loaded: LoadedModel, tokens: Sequence[int]) -> torch.Tensor:
    model: Any = loaded.model
    return model(input_ids=torch.tensor([list(tokens)]), use_cache=False).logits[0]


def runners(loaded: LoadedModel) -> list[ModelRunner]:
    made: list[ModelRunner] = [TransformersRunner(loaded)]
    if is_lean(loaded):
        made.append(LeanRunner(loaded, kv_shape_of(loaded)))
    return made


@pytest.mark.parametrize("shape", SHAPES)
def test_ragged_rows_match_transformers(shape: str) -> None:
    loaded = random_model(shape)
    generator = torch.Generator().manual_seed(1)
    texts = [torch.randint(3, 259, (length,), generator=generator).tolist() for length in (40, 17, 3, 29)]
    want = [reference(loaded, text) for text in texts]
    for runner in runners(loaded):
        pool = KVPool(runner.kv_shape, 1024)
        rows = [pool.allocate(64) for _ in texts]
        done = [0] * len(texts)
        for step in ((9, 17, 1, 5), (1, 0, 1, 8), (5, 0, 1, 1), (25, 0, 0, 15)):
            batch = [(at, take) for at, take in enumerate(step) if take]
            got = runner.forward(
                [RowInput(rows[at], texts[at][done[at] : done[at] + take], take) for at, take in batch]
            )
            for (at, take), part in zip(batch, got.split([take for _, take in batch]), strict=True):
                torch.testing.assert_close(part, want[at][done[at] : done[at] + take], atol=2e-4, rtol=1e-4)
                done[at] += take
        assert done == [40, 17, 3, 29]


@pytest.mark.parametrize("shape", SHAPES)
def test_roll_back_leaves_no_trace(shape: str) -> None:
    loaded = random_model(shape)
    text = list(range(10, 50))
    want = reference(loaded, text)
    for runner in runners(loaded):
        row = KVPool(runner.kv_shape, 256).allocate(64)
        assert row is not None
        runner.forward([RowInput(row, text[:20], 0)])
        runner.forward([RowInput(row, [200, 201, 202, 203], 4)])
        row.truncate(20)
        got = runner.forward([RowInput(row, text[20:], 20)])
        torch.testing.assert_close(got, want[20:], atol=2e-4, rtol=1e-4)


def test_a_head_that_is_the_embedding() -> None:
    """Single rows and others take different copies of it, and tokens are looked up in one."""
    loaded = random_model("llama", tie_word_embeddings=True)
    text = list(range(10, 50))
    runner = make_runner(loaded)
    row = KVPool(runner.kv_shape, 64).allocate(64)
    assert row is not None
    parts = [runner.forward([RowInput(row, part, len(part))]) for part in (text[:20], text[20:21], text[21:])]
    torch.testing.assert_close(torch.cat(parts), reference(loaded, text), atol=2e-4, rtol=1e-4)


def test_only_the_wanted_logits() -> None:
    runner = make_runner(random_model("llama"))
    pool = KVPool(runner.kv_shape, 256)
    first, second = pool.allocate(16), pool.allocate(16)
    got = runner.forward([RowInput(first, [5, 6, 7, 8], 2), RowInput(second, [5, 6, 7], 0)])
    assert got.shape == (2, 259)


def test_growing_keeps_what_was_computed() -> None:
    loaded = random_model("llama")
    text = [3 + (7 * at) % 250 for at in range(200)]
    runner = make_runner(loaded)
    pool = KVPool(runner.kv_shape, 512)
    row = pool.allocate(20)
    assert row is not None
    assert row.capacity == 64
    runner.forward([RowInput(row, text[:60], 0)])
    assert pool.reserve(row, 200)
    got = runner.forward([RowInput(row, text[60:], 140)])
    torch.testing.assert_close(got, reference(loaded, text)[60:], atol=2e-4, rtol=1e-4)


def test_llama_shapes_are_lean_and_others_are_not() -> None:
    lean = {shape for shape in SHAPES if is_lean(random_model(shape))}
    assert lean == {"llama", "llama3-rope", "mistral", "qwen2", "qwen2-window", "qwen3"}


def test_transformers_runner_restores_the_attention() -> None:
    loaded = random_model("gemma2")
    config: Any = loaded.model.config
    before = config._attn_implementation
    runner = TransformersRunner(loaded)
    row = KVPool(runner.kv_shape, 64).allocate(8)
    assert row is not None
    runner.forward([RowInput(row, [5, 6], 1)])
    assert config._attn_implementation == before


def test_models_that_cannot_roll_back_are_refused_with_the_reason() -> None:
    loaded = random_model("llama")
    config: Any = loaded.model.config
    config.layer_types = ["full_attention", "linear_attention"]
    with pytest.raises(ModelError, match="linear_attention keep state that cannot be rolled back"):
        make_runner(loaded)


def test_bfloat16_stays_close_to_transformers() -> None:
    loaded = random_model("llama")
    loaded.model.to(torch.bfloat16)
    text = list(range(10, 60))
    want = reference(loaded, text).float()
    runner = LeanRunner(loaded, kv_shape_of(loaded))
    row = KVPool(runner.kv_shape, 64).allocate(64)
    assert row is not None
    got = torch.cat([runner.forward([RowInput(row, text[:45], 45)]), runner.forward([RowInput(row, text[45:], 5)])])
    assert torch.corrcoef(torch.stack([got.float().flatten(), want.flatten()]))[0, 1] > 0.999


@torch.inference_mode()
def test_the_mirrored_norm_is_the_norm_but_for_the_last_bit() -> None:
    module: Any = random_model("llama").model
    norm = module.to(torch.bfloat16).model.norm
    generator = torch.Generator().manual_seed(3)
    for scale in (1e-3, 1.0, 300.0):
        x = (torch.randn(50, 32, generator=generator) * scale).to(torch.bfloat16)
        want = torch.nn.functional.rms_norm(x, (32,), norm.weight, norm.variance_epsilon)
        torch.testing.assert_close(Norm(norm)(x), want, rtol=2**-7, atol=0)
