"""Forward passes of target or draft over packed batches. Called by the core and by the draft-model proposer.

`make_runner` picks the lean runner for Llama-shaped models and transformers' own model code for the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import torch

from engine.attention import IMPLEMENTATION, PackedBatch, RowInput
from engine.errors import ModelError
from engine.graph_runner import GraphRunner
from engine.kv_cache import KVShape
from engine.lean_runner import LeanRunner, is_lean

if TYPE_CHECKING:
    from engine.models import LoadedModel

_LAYER_TYPES = {"full_attention", "sliding_attention"}
_FOREIGN_KINDS = ("num_local_experts_per_tok", "attention_chunk_size", "ssm_cfg", "mamba_d_state")


class ModelRunner(Protocol):
    """What the engine needs from a model."""

    kv_shape: KVShape
    vocab_size: int
    taps: tuple[int, ...]
    """Numbers of layers, ascending from 1, after which hidden states are kept; empty: none are."""
    features: torch.Tensor | None
    """Of the last pass: the tapped hidden states side by side [tokens, taps · width]; None without taps."""

    def forward(self, rows: Sequence[RowInput]) -> torch.Tensor:
        """Run all new tokens, advance every row's KV length and return logits [Σ num_logits, vocab_size]."""


def kv_shape_of(loaded: LoadedModel) -> KVShape:
    """Return the KV layout of a model. Raises ModelError where its cache cannot be rolled back position by position."""
    config: Any = loaded.model.config
    config = config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if not kinds <= _LAYER_TYPES:
        strange = ", ".join(sorted(kinds - _LAYER_TYPES))
        raise ModelError(f"{loaded.name}: layers of type {strange} keep state that cannot be rolled back")
    strange_fields = [name for name in _FOREIGN_KINDS if getattr(config, name, None)]
    if strange_fields:
        raise ModelError(f"{loaded.name}: models with {strange_fields[0]} are not supported")
    if not getattr(loaded.model, "_supports_attention_backend", False):
        raise ModelError(
            f"{loaded.name}: {type(loaded.model).__name__} does not accept another attention implementation"
        )
    if getattr(config, "num_kv_shared_layers", 0):
        raise ModelError(f"{loaded.name}: layers that share keys and values are not supported")
    heads = int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)
    dim = int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
    device = torch.device(loaded.device)
    return KVShape(int(config.num_hidden_layers), heads, dim, loaded.model.dtype, device)


class TransformersRunner:
    """Runs transformers' own model code, its attention replaced by the packed one for the duration of a pass."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.kv_shape = kv_shape_of(loaded)
        self.vocab_size = loaded.vocab_size
        self.taps: tuple[int, ...] = ()
        self.features: torch.Tensor | None = None
        self._model: Any = loaded.model
        self._model.train(False)
        self._device = torch.device(loaded.device)

    @torch.inference_mode()
    def forward(self, rows: Sequence[RowInput]) -> torch.Tensor:
        """Run all new tokens of all rows in one pass."""
        batch = PackedBatch(rows, self._device)
        config = self._model.config
        before = config._attn_implementation
        config._attn_implementation = IMPLEMENTATION
        try:
            with _tapping(self._model, self.taps) as tapped:
                logits: torch.Tensor = self._model(
                    input_ids=batch.input_ids.unsqueeze(0),
                    position_ids=batch.positions.unsqueeze(0),
                    use_cache=False,
                    logits_to_keep=batch.wanted,
                    packed=batch,
                ).logits[0]
        finally:
            config._attn_implementation = before
        self.features = torch.cat(tapped, dim=-1) if tapped else None
        batch.commit()
        return logits


@contextmanager
def _tapping(model: Any, taps: tuple[int, ...]) -> Iterator[list[torch.Tensor]]:  # noqa: ANN401 - any of transformers' models
    """Collect what the tapped decoder layers put out [tokens, width], in order, while the block runs."""
    tapped: list[torch.Tensor] = []

    def keep(_module: torch.nn.Module, _given: Any, out: Any) -> None:  # noqa: ANN401 - a tensor or a tuple of them
        tapped.append((out[0] if isinstance(out, tuple) else out)[0])

    layers = model.get_decoder().layers if taps else ()
    handles = [layers[number - 1].register_forward_hook(keep) for number in taps]
    try:
        yield tapped
    finally:
        for handle in handles:
            handle.remove()


def make_runner(loaded: LoadedModel, *, static: bool = False) -> ModelRunner:
    """Return the fastest runner that computes this model exactly. Raises ModelError where none does.

    With `static`, rows of the pool's common slab run in static shapes, where the model is one for the lean runner.
    """
    shape = kv_shape_of(loaded)
    if is_lean(loaded):
        return GraphRunner(loaded, shape) if static else LeanRunner(loaded, shape)
    return TransformersRunner(loaded)
