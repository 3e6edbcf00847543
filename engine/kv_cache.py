"""Keys and values of every running sequence: allocate, grow, roll back, give back. Called by the core and the runners.

Each sequence owns its storage, so that lengths are ragged by construction: no row is padded to another's length, no row
can read or overwrite another's, roll-back is a shorter `length`, and memory is returned when its sequence leaves. The
pool counts capacity in tokens and never exceeds its budget.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

BLOCK = 64
"""Capacity is a multiple of this many tokens."""


@dataclass(frozen=True, slots=True)
class KVShape:
    """What one token's keys and values take: `layers` times two times `[heads, head_dim]`."""

    layers: int
    heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token occupies over all layers."""
        return 2 * self.layers * self.heads * self.head_dim * self.dtype.itemsize


class KVRow:
    """Keys and values of one sequence. Positions below `length` are valid; those above are free to overwrite."""

    __slots__ = ("_store", "capacity", "length")

    def __init__(self, shape: KVShape, capacity: int) -> None:
        self.length = 0
        self._take(_storage(shape, capacity))

    def resize(self, shape: KVShape, capacity: int) -> None:
        """Move to storage of `capacity` tokens, keeping the valid ones."""
        store = _storage(shape, capacity)
        store[..., : self.length, :] = self._store[..., : self.length, :]
        self._take(store)

    def clear(self) -> None:
        """Drop the storage."""
        self.length = 0
        self._take(self._store[..., :0, :].clone())

    def _take(self, store: torch.Tensor) -> None:
        self._store = store
        self.capacity = store.shape[-2]

    def truncate(self, length: int) -> None:
        """Roll back to the first `length` positions; longer than valid is a no-op."""
        self.length = min(self.length, length)

    def views(
        self, past: int, count: int
    ) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
        """By layer: where `count` new tokens go [2, heads, count, dim], and all keys and all values up to them."""
        stored = self._store[:, :, 0, :, past : past + count].unbind(0)
        known = self._store[..., : past + count, :]
        return stored, known[:, 0].unbind(0), known[:, 1].unbind(0)

    def zero(self) -> None:
        """Fill the storage with zeros, for timing without a text."""
        self._store.zero_()

    def copy_prefix(self, source: KVRow, length: int) -> None:
        """Take over the first `length` positions of `source`."""
        self._store[..., :length, :] = source._store[..., :length, :]
        self.length = length


def _storage(shape: KVShape, capacity: int) -> torch.Tensor:
    return torch.empty(
        (shape.layers, 2, 1, shape.heads, capacity, shape.head_dim), dtype=shape.dtype, device=shape.device
    )


class KVPool:
    """Hands out rows within a budget of `total` tokens of capacity. Not thread-safe: the step thread owns it."""

    def __init__(self, shape: KVShape, total: int) -> None:
        self.shape = shape
        self.total = max(BLOCK, total // BLOCK * BLOCK)
        self.used = 0

    @staticmethod
    def rounded(tokens: int) -> int:
        """Capacity that `tokens` take."""
        return -(-max(1, tokens) // BLOCK) * BLOCK

    @property
    def free(self) -> int:
        """Tokens of capacity not handed out."""
        return self.total - self.used

    def allocate(self, tokens: int) -> KVRow | None:
        """Return an empty row that holds `tokens`, or None where the budget has no room."""
        capacity = self.rounded(tokens)
        if capacity > self.free:
            return None
        self.used += capacity
        return KVRow(self.shape, capacity)

    def reserve(self, row: KVRow, tokens: int) -> bool:
        """Make sure that `row` holds `tokens`; False where the budget has no room. Grows by half to copy rarely."""
        if tokens <= row.capacity:
            return True
        capacity = self.rounded(max(tokens, row.capacity + row.capacity // 2))
        if capacity - row.capacity > self.free:
            capacity = self.rounded(tokens)
            if capacity - row.capacity > self.free:
                return False
        self.used += capacity - row.capacity
        row.resize(self.shape, capacity)
        return True

    def release(self, row: KVRow) -> None:
        """Give a row back; it must not be used afterwards."""
        self.used -= row.capacity
        row.clear()
