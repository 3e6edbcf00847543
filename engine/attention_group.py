"""Attention of several short rows in one call: their keys and values lie in one slab. Called by `engine/attention.py`.

Queries are padded to the longest row's number and to the slots between the first and the last row; a mask hides what a
row may not see, and what is computed for padding is dropped. Keys and values are neither copied nor moved.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch.nn import functional

from engine.kv_cache import KVRow, Slab

MAX_COUNT = 33
"""Rows with more new tokens than this (prompt chunks) gain nothing by company."""
MAX_WASTE = 2.0
"""Queries computed, padding included, for each query asked for."""


class Rule(NamedTuple):
    """How one layer attends."""

    scale: float
    window: int | None = None
    """Positions seen, the own one included; None: all before."""
    softcap: float | None = None


def scores(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, rule: Rule
) -> torch.Tensor:
    """Attention; query [rows, kv heads, queries, dim], keys and values [rows, kv heads, length, dim], additive mask."""
    if rule.softcap is None:
        return functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=rule.scale)
    squashed = torch.tanh(query @ keys.transpose(2, 3) * rule.scale / rule.softcap) * rule.softcap
    if mask is not None:  # Gemma 2's squashed scores, which the fused kernels do not offer
        squashed = squashed + mask
    return torch.softmax(squashed, dim=-1, dtype=torch.float32).to(query.dtype) @ values


def grouped(rows: Sequence[tuple[KVRow, int]]) -> tuple[list[list[int]], list[int]]:
    """Which rows (storage, number of new tokens) attend together, each group in slot order, and which alone."""
    by_slab: dict[Slab, list[int]] = {}
    alone = []
    for at, (kv, count) in enumerate(rows):
        if count <= MAX_COUNT:
            by_slab.setdefault(kv.slab, []).append(at)
        else:
            alone.append(at)
    together = []
    for members in by_slab.values():
        members.sort(key=lambda at: rows[at][0].slot)
        parts = [members]
        if _wasteful([rows[at] for at in members]):
            parts = [[at for at in members if (rows[at][1] == 1) is single] for single in (True, False)]
        for part in parts:
            if len(part) > 1 and not _wasteful([rows[at] for at in part]):
                together.append(part)
            else:
                alone.extend(part)
    return together, alone


def _wasteful(rows: Sequence[tuple[KVRow, int]]) -> bool:
    counts = [count for _, count in rows]
    slots = rows[-1][0].slot - rows[0][0].slot + 1
    return slots * max(counts) > MAX_WASTE * sum(counts)


class Group:
    """Rows of one slab in one forward pass: (storage, first token in the batch, new tokens), in slot order."""

    def __init__(self, rows: Sequence[tuple[KVRow, int, int]], device: torch.device) -> None:
        self._slab = rows[0][0].slab
        self._first = rows[0][0].slot
        self._slots = rows[-1][0].slot - self._first + 1
        self._count = max(count for _, _, count in rows)
        self._length = max(kv.length + count for kv, _, count in rows)
        self._device = device
        self._pasts = [0] * self._slots
        tokens: list[int] = []
        """Our tokens' places in the batch, in slot order."""
        places: list[int] = []
        """Of each of our tokens, its query."""
        taken = [rows[0][1]] * (self._slots * self._count)
        """Of each query computed, the batch's token that it is; that of padding does not matter."""
        stored: list[tuple[int, int]] = []
        for kv, start, count in rows:
            at = (kv.slot - self._first) * self._count
            taken[at : at + count] = range(start, start + count)
            tokens.extend(range(start, start + count))
            places.extend(range(at, at + count))
            self._pasts[kv.slot - self._first] = kv.length
            stored.extend((kv.slot, kv.length + step) for step in range(count))
        self._dense = len(taken) == len(tokens)
        self._run = slice(tokens[0], tokens[-1] + 1) if tokens == list(range(tokens[0], tokens[-1] + 1)) else None
        """Our tokens where they lie behind one another in slot order."""
        self._tokens = torch.tensor(tokens, device=device)
        self._taken = torch.tensor(taken, device=device)
        self._places = torch.tensor(places, device=device)
        self._written = self._places_in_slab(stored)
        self._masks: dict[tuple[int | None, int], torch.Tensor | None] = {}

    def _places_in_slab(self, stored: Sequence[tuple[int, int]]) -> torch.Tensor:
        """Where in one layer of the slab, as [.., dim], keys and then values of (slot, position) lie, head by head."""
        _, slots, heads, capacity, _ = self._slab.layers[0].shape
        at = torch.tensor(stored, device=self._device)
        halves = torch.arange(2, device=self._device).view(2, 1, 1) * slots
        row = (halves + at[:, 0].view(1, -1, 1)) * heads + torch.arange(heads, device=self._device)
        return (row * capacity + at[:, 1].view(1, -1, 1)).flatten()

    def attend(self, layer: int, query: torch.Tensor, new: torch.Tensor, rule: Rule) -> torch.Tensor:
        """Query [batch's tokens, kv heads, group, dim], new keys and values [2, batch's tokens, kv heads, dim].

        Stores our part of `new` and returns the output of our tokens in slot order, [ours, heads · dim].
        """
        _, kv_heads, group, dim = query.shape
        slots, count = self._slots, self._count
        store = self._slab.layers[layer]
        ours = new.index_select(1, self._tokens) if self._run is None else new[:, self._run]
        store.view(-1, dim).index_copy_(0, self._written, ours.reshape(-1, dim))
        direct = self._dense and self._run is not None
        mine = query[self._run] if direct else query.index_select(0, self._taken)
        folded = mine.reshape(slots, count, kv_heads, group, dim).permute(0, 2, 3, 1, 4)
        known = store[:, self._first : self._first + slots, :, : self._length]
        mask = self._mask(rule, group, query)
        out = scores(folded.reshape(slots, kv_heads, group * count, dim), known[0], known[1], mask, rule)
        out = out.view(slots, kv_heads, group, count, dim).permute(0, 3, 1, 2, 4).reshape(slots * count, -1)
        return out if self._dense else out.index_select(0, self._places)

    def place(self, ours: torch.Tensor, out: torch.Tensor) -> None:
        """Put the output of our tokens where they lie in the batch's, `out`."""
        if self._run is None:
            out.index_copy_(0, self._tokens, ours)
        else:
            out[self._run] = ours

    def ordered(self, ours: torch.Tensor) -> torch.Tensor:
        """Return the output of our tokens in the batch's order, where all its tokens are ours."""
        if self._run is not None:
            return ours
        out = torch.empty_like(ours)
        self.place(ours, out)
        return out

    def _mask(self, rule: Rule, group: int, query: torch.Tensor) -> torch.Tensor | None:
        """Additive mask [slots, 1, group · count, length], shared by the layers; None where all see all."""
        window = rule.window if rule.window is not None and self._length > rule.window else None
        if (window, group) not in self._masks:
            self._masks[window, group] = self._make_mask(window, group, query)
        return self._masks[window, group]

    def _make_mask(self, window: int | None, group: int, query: torch.Tensor) -> torch.Tensor | None:
        if self._count == 1 and window is None and min(self._pasts) == self._length - 1:
            return None
        pasts = torch.tensor(self._pasts, device=self._device).view(-1, 1, 1)
        own = pasts + torch.arange(self._count, device=self._device).view(1, -1, 1)
        columns = torch.arange(self._length, device=self._device)
        hidden = columns > own
        if window is not None:
            hidden = hidden | (columns <= own - window)
        mask = torch.zeros(hidden.shape, dtype=query.dtype, device=self._device).masked_fill_(hidden, float("-inf"))
        return mask.repeat(1, group, 1).unsqueeze(1)
