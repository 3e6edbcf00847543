"""Attention over a packed batch of rows of different lengths. Called by the model runners, once per layer.

The new tokens of all rows lie behind one another in one dimension; each row attends to its own keys and values only.
Also registered with transformers as an attention implementation, so that its model code runs over packed batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn import functional
from transformers import AttentionInterface

from engine.kv_cache import KVRow

IMPLEMENTATION = "breakeven_packed"
"""Name under which `packed_attention` is registered with transformers."""


@dataclass(slots=True)
class RowInput:
    """New tokens of one row, and for how many of the last ones logits are wanted."""

    kv: KVRow
    tokens: list[int]
    num_logits: int


@dataclass(slots=True)
class _Span:
    kv: KVRow
    start: int
    count: int
    past: int
    masks: dict[tuple[int | None, int], torch.Tensor | None] = field(default_factory=dict)


class PackedBatch:
    """One forward pass: where each row's tokens lie, and the masks that its layers share."""

    def __init__(self, rows: Sequence[RowInput], device: torch.device) -> None:
        self.spans: list[_Span] = []
        ids: list[int] = []
        positions: list[int] = []
        wanted: list[int] = []
        for row in rows:
            past, count = row.kv.length, len(row.tokens)
            self.spans.append(_Span(row.kv, len(ids), count, past))
            ids.extend(row.tokens)
            positions.extend(range(past, past + count))
            wanted.extend(range(len(ids) - row.num_logits, len(ids)))
        self.size = len(ids)
        self.input_ids = torch.tensor(ids, device=device)
        self.positions = torch.tensor(positions, device=device)
        self.wanted = torch.tensor(wanted, dtype=torch.long, device=device)
        self.all_wanted = len(wanted) == len(ids)

    def commit(self) -> None:
        """Count the new tokens as valid in every row."""
        for span in self.spans:
            span.kv.length = span.past + span.count

    def attend(  # noqa: PLR0917 - the tensors of one attention layer, in the field's usual order
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
    ) -> torch.Tensor:
        """Store the new keys and values and return the attention output.

        query is [tokens, heads, dim], key and value [tokens, kv heads, dim]; the result is [tokens, heads · dim].
        """
        size, heads, dim = query.shape
        kv_heads = key.shape[1]
        group = heads // kv_heads
        grouped = query.view(size, kv_heads, group, dim)
        keys = key.transpose(0, 1).unsqueeze(0)
        values = value.transpose(0, 1).unsqueeze(0)
        parts = []
        for span in self.spans:
            start, count, end = span.start, span.count, span.past + span.count
            all_keys, all_values = span.kv.keys[layer], span.kv.values[layer]
            all_keys.narrow(2, span.past, count).copy_(keys.narrow(2, start, count))
            all_values.narrow(2, span.past, count).copy_(values.narrow(2, start, count))
            parts.append(
                _attend_row(
                    grouped.narrow(0, start, count),
                    all_keys.narrow(2, 0, end),
                    all_values.narrow(2, 0, end),
                    span,
                    (scale, window, softcap),
                )
            )
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def _attend_row(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    span: _Span,
    rule: tuple[float, int | None, float | None],
) -> torch.Tensor:
    """One row: query [count, kv heads, group, dim] against [1, kv heads, length, dim] → [count, heads · dim].

    The heads that share a key head are laid beside the positions, so that keys and values are never repeated.
    """
    scale, window, softcap = rule
    count, kv_heads, group, dim = query.shape
    mask = _mask(span, window, group, query)
    if count == 1:
        if softcap is None:
            out = functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=scale)
        else:
            out = _soft_capped(query, keys, values, mask, (scale, softcap))
        return out.reshape(1, kv_heads * group * dim)
    if span.past == 0 and softcap is None and (window is None or count <= window):
        heads = query.permute(1, 2, 0, 3).reshape(1, kv_heads * group, count, dim)
        out = functional.scaled_dot_product_attention(
            heads, keys, values, is_causal=True, scale=scale, enable_gqa=group > 1
        )
        return out[0].transpose(0, 1).reshape(count, kv_heads * group * dim)
    folded = query.permute(1, 2, 0, 3).reshape(1, kv_heads, group * count, dim)
    if softcap is None:
        out = functional.scaled_dot_product_attention(folded, keys, values, attn_mask=mask, scale=scale)
    else:
        out = _soft_capped(folded, keys, values, mask, (scale, softcap))
    return out.view(kv_heads, group, count, dim).permute(2, 0, 1, 3).reshape(count, kv_heads * group * dim)


def _mask(span: _Span, window: int | None, group: int, query: torch.Tensor) -> torch.Tensor | None:
    """Additive mask [group · count, length] of one row, shared by its layers; None where all is seen."""
    end = span.past + span.count
    if window is not None and end <= window:
        window = None
    wanted = (window, group)
    if wanted not in span.masks:
        mask = None
        if span.count > 1 or window is not None:
            columns = torch.arange(end, device=query.device)
            rows = torch.arange(span.past, end, device=query.device).unsqueeze(1)
            hidden = columns > rows
            if window is not None:
                hidden = hidden | (columns <= rows - window)
            mask = torch.zeros(hidden.shape, dtype=query.dtype, device=query.device)
            mask = mask.masked_fill_(hidden, float("-inf")).repeat(group, 1)
        span.masks[wanted] = mask
    return span.masks[wanted]


def _soft_capped(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    rule: tuple[float, float],
) -> torch.Tensor:
    """Attention whose scores are squashed by a tanh (Gemma 2), which the fused kernels do not offer."""
    scale, softcap = rule
    scores = torch.tanh(query @ keys.transpose(2, 3) * scale / softcap) * softcap
    if mask is not None:
        scores = scores + mask
    return torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype) @ values


def packed_attention(  # noqa: PLR0917 - the signature that transformers calls
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,  # noqa: ARG001 - rows are kept apart by the batch, not by a mask
    scaling: float | None = None,
    dropout: float = 0.0,  # noqa: ARG001 - never training
    sliding_window: int | None = None,
    softcap: float | None = None,
    *,
    packed: PackedBatch,
    **kwargs: Any,  # noqa: ARG001, ANN401 - whatever a model passes on
) -> tuple[torch.Tensor, None]:
    """Transformers' attention interface: tensors are [1, heads, tokens, dim], the result [1, tokens, heads, dim]."""
    dim = query.shape[-1]
    out = packed.attend(
        module.layer_idx,  # type: ignore[arg-type]  # set by every attention module of transformers
        query[0].transpose(0, 1).contiguous(),
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        dim**-0.5 if scaling is None else scaling,
        sliding_window,
        softcap,
    )
    return out.view(1, query.shape[2], query.shape[1], dim), None


AttentionInterface.register(IMPLEMENTATION, packed_attention)
