"""What a draft has from its target: the embedding, the output matrix and the sizes of a layer. Called by both kinds."""

from __future__ import annotations

from typing import Any

import torch

from engine.models import LoadedModel
from engine.spec_decode.head_file import HeadShape


def matrices(target: LoadedModel) -> tuple[torch.Tensor, torch.Tensor]:
    """The target's embedding and output matrix [tokens, width]."""
    model: Any = target.model
    return model.get_input_embeddings().weight.detach(), model.get_output_embeddings().weight.detach()


def shape_of(target: LoadedModel, taps: tuple[int, ...], vocab: int) -> HeadShape:
    """A head's sizes: those of one layer of the target."""
    config = target.model.config.get_text_config()
    rope = getattr(config, "rope_parameters", None) or {}
    heads = int(config.num_attention_heads)
    return HeadShape(
        target=target.name,
        taps=taps,
        width=int(config.hidden_size),
        heads=heads,
        kv_heads=int(getattr(config, "num_key_value_heads", None) or heads),
        head_dim=int(getattr(config, "head_dim", None) or config.hidden_size // heads),
        inner=int(config.intermediate_size),
        vocab=vocab,
        eps=float(config.rms_norm_eps),
        rope_theta=float(rope.get("rope_theta", getattr(config, "rope_theta", 10_000.0))),
    )
