"""Attention over a packed batch of rows of different lengths. Called by the model runners, once per layer.

The new tokens of all rows lie behind one another in one dimension; each row attends to its own keys and values only.
Rows that can share a call are in `engine/attention_group.py`.
Also registered with transformers as an attention implementation, so that its model code runs over packed batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch.nn import functional
from transformers import AttentionInterface

from engine.attention_group import Group, Rule, grouped, scores
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
    """One row's place in the batch, and views of its storage by layer."""

    start: int
    count: int
    past: int
    stored: tuple[torch.Tensor, ...]
    """Where its new keys and values go: [2, kv heads, count, dim]."""
    keys: tuple[torch.Tensor, ...]
    """[1, kv heads, past + count, dim]."""
    values: tuple[torch.Tensor, ...]
    masks: dict[tuple[int | None, int], torch.Tensor | None] = field(default_factory=dict)


class Attending(Protocol):
    """What a layer needs of a batch: see `PackedBatch.attend`."""

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
        """Store the new keys and values and return the attention output."""


class PackedBatch:
    """One forward pass: where each row's tokens lie, and what its layers share.

    Tokens lie in the order of the rows given. Short rows whose keys and values lie in one slab attend together.
    """

    def __init__(self, rows: Sequence[RowInput], device: torch.device) -> None:
        starts: list[int] = []
        ids: list[int] = []
        positions: list[int] = []
        wanted: list[int] = []
        for row in rows:
            starts.append(len(ids))
            ids.extend(row.tokens)
            positions.extend(range(row.kv.length, row.kv.length + len(row.tokens)))
            wanted.extend(range(len(ids) - row.num_logits, len(ids)))
        together, alone = grouped([(row.kv, len(row.tokens)) for row in rows])
        self._rows = rows
        self._groups = [
            Group([(rows[at].kv, starts[at], len(rows[at].tokens)) for at in members], device) for members in together
        ]
        self._spans = [_span(rows[at], starts[at]) for at in alone]
        self.longest = max(positions) + 1
        """Positions in use: those of the longest row with its new tokens."""
        self.input_ids = torch.tensor(ids, device=device)
        self.positions = torch.tensor(positions, device=device)
        self.wanted = torch.tensor(wanted, dtype=torch.long, device=device)
        self.all_wanted = len(wanted) == len(ids)

    def commit(self) -> None:
        """Count the new tokens as valid in every row."""
        for row in self._rows:
            row.kv.length += len(row.tokens)

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
        kv_heads = key.shape[1]
        rule = Rule(scale, window, softcap)
        new = torch.stack((key, value))
        split = query.view(query.shape[0], kv_heads, -1, query.shape[2])
        if len(self._groups) + len(self._spans) == 1:
            for group in self._groups:
                return group.ordered(group.attend(layer, split, new, rule))
            return self._attend_alone(layer, split, new, rule, self._spans[0])
        out = query.new_empty(query.shape[0], query.shape[1] * query.shape[2])
        for group in self._groups:
            group.place(group.attend(layer, split, new, rule), out)
        for span in self._spans:
            out.narrow(0, span.start, span.count).copy_(self._attend_alone(layer, split, new, rule, span))
        return out

    @staticmethod
    def _attend_alone(layer: int, query: torch.Tensor, new: torch.Tensor, rule: Rule, span: _Span) -> torch.Tensor:
        span.stored[layer].copy_(new.narrow(1, span.start, span.count).transpose(1, 2))
        return _attend_row(query.narrow(0, span.start, span.count), layer, span, rule)


def _span(row: RowInput, start: int) -> _Span:
    past, count = row.kv.length, len(row.tokens)
    return _Span(start, count, past, *row.kv.views(past, count))


def _attend_row(query: torch.Tensor, layer: int, span: _Span, rule: Rule) -> torch.Tensor:
    """One row: query [count, kv heads, group, dim] → [count, heads · dim].

    The heads that share a key head are laid beside the positions, so that keys and values are never repeated.
    """
    count, kv_heads, group, dim = query.shape
    keys, values = span.keys[layer], span.values[layer]
    if span.past == 0 and rule.softcap is None and (rule.window is None or count <= rule.window):
        heads = query.permute(1, 2, 0, 3).reshape(1, kv_heads * group, count, dim)
        out = functional.scaled_dot_product_attention(
            heads, keys, values, is_causal=count > 1, scale=rule.scale, enable_gqa=group > 1
        )
        return out[0].transpose(0, 1).reshape(count, kv_heads * group * dim)
    folded = query.permute(1, 2, 0, 3).reshape(1, kv_heads, group * count, dim)
    out = scores(folded, keys, values, _mask(span, rule.window, group, query), rule)
    return out.reshape(kv_heads, group, count, dim).permute(2, 0, 1, 3).reshape(count, kv_heads * group * dim)


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
        query[0].transpose(0, 1),
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        dim**-0.5 if scaling is None else scaling,
        sliding_window,
        softcap,
    )
    return out.view(1, query.shape[2], query.shape[1], dim), None


AttentionInterface.register(IMPLEMENTATION, packed_attention)
