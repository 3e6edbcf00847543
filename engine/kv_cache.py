"""Keys and values of every running sequence: allocate, grow, roll back, give back. Called by the core and the runners.

Rows of one capacity lie side by side in a slab, so that attention reads many of them in one call. A row's slot is its
own: lengths are ragged, no row is moved or padded to another's length, no row can read or overwrite another's, and
roll-back is a shorter `length`. The pool counts capacity in tokens and never exceeds its budget, spare slots included.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

BLOCK = 64
"""Capacity is a multiple of this many tokens."""
MAX_SLOTS = 16
_SLAB_SHARE = 4
"""A slab takes at most this part of the budget, 1 / _SLAB_SHARE, unless it has a single slot."""


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


class Slab:
    """Storage of rows of one capacity: [layers, 2, slots, heads, capacity, head_dim]."""

    __slots__ = ("__weakref__", "capacity", "fixed", "layers", "rows", "store")

    def __init__(self, shape: KVShape, capacity: int, slots: int, *, fixed: bool = False) -> None:
        """A fixed slab keeps its place in memory while it lives, and has a last slot that is never anyone's."""
        size = (shape.layers, 2, slots + fixed, shape.heads, capacity, shape.head_dim)
        self.capacity = capacity
        self.fixed = fixed
        self.rows: list[KVRow | None] = [None] * slots
        self._hold(torch.empty(size, dtype=shape.dtype, device=shape.device))

    def _hold(self, store: torch.Tensor) -> None:
        self.store = store
        self.layers = store.unbind(0)
        """By layer: [2, slots, heads, capacity, head_dim]."""

    @property
    def tokens(self) -> int:
        """Tokens of capacity, free slots included."""
        return self.capacity * (len(self.rows) + self.fixed)

    def seat(self, row: KVRow) -> None:
        """Give `row` the first free slot, zeroed: what an earlier tenant left there must not reach anyone's sums."""
        slot = self.rows.index(None)
        self.store[:, :, slot].zero_()
        self.rows[slot] = row
        row.move(self, slot)

    def shrink(self) -> None:
        """Give up the free slots; at least one row must be seated."""
        kept = [(slot, row) for slot, row in enumerate(self.rows) if row is not None]
        self._hold(self.store[:, :, [slot for slot, _ in kept]])
        self.rows = [row for _, row in kept]
        for slot, (_, row) in enumerate(kept):
            row.move(self, slot)


class KVRow:
    """Keys and values of one sequence. Positions below `length` are valid; those above are free to overwrite."""

    __slots__ = ("_store", "capacity", "length", "slab", "slot")

    def __init__(self) -> None:
        self.length = 0
        self.capacity = 0

    def move(self, slab: Slab, slot: int) -> None:
        """Take a slot as the row's storage; its contents are the caller's care."""
        self.slab, self.slot = slab, slot
        self.capacity = slab.capacity
        self._store = slab.store[:, :, slot : slot + 1]

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


class KVPool:
    """Hands out rows within a budget of `total` tokens of capacity. Not thread-safe: the step thread owns it."""

    def __init__(self, shape: KVShape, total: int, *, together: int = 0) -> None:
        """Set up an empty pool; `together` > 0 gives so many rows a place in one slab that never moves (for a GPU).

        Rows that outgrow their place in it move to slabs of their own, for which a part of the budget stays free.
        """
        self.shape = shape
        self.total = max(BLOCK, total // BLOCK * BLOCK)
        self.used = 0
        self._together = together
        self._place = (
            self.total * (_SLAB_SHARE - 1) // _SLAB_SHARE // (together + 1) // BLOCK * BLOCK if together else 0
        )
        """Capacity of the places in the common slab; 0: there is none."""
        self._slabs: list[Slab] = []

    @staticmethod
    def rounded(tokens: int) -> int:
        """The least capacity that `tokens` take."""
        return -(-max(1, tokens) // BLOCK) * BLOCK

    @property
    def free(self) -> int:
        """Tokens of capacity not handed out."""
        return self.total - self.used

    @property
    def held(self) -> int:
        """Tokens of capacity that memory is taken for: those handed out and those of spare slots."""
        return sum(slab.tokens for slab in self._slabs)

    def allocate(self, tokens: int) -> KVRow | None:
        """Return an empty row that holds `tokens`, or None where the budget has no room."""
        capacity = self._capacity(tokens, self._room())
        if capacity is None:
            return None
        row = KVRow()
        self.used += capacity
        self._seat(row, capacity)
        return row

    def reserve(self, row: KVRow, tokens: int) -> bool:
        """Make sure that `row` holds `tokens`; False where the budget has no room. Grows by a third or half."""
        if tokens <= row.capacity:
            return True
        capacity = self._capacity(tokens, self._room(row))
        if capacity is None:
            return False
        slab, slot, store = row.slab, row.slot, row._store
        self.used += capacity - row.capacity
        slab.rows[slot] = None
        self._drop_if_empty(slab)
        self._seat(row, capacity)
        row._store[..., : row.length, :] = store[..., : row.length, :]
        return True

    def release(self, row: KVRow) -> None:
        """Give a row back; it must not be used afterwards."""
        slab = row.slab
        self.used -= row.capacity
        slab.rows[row.slot] = None
        self._drop_if_empty(slab)
        row.length = row.capacity = 0
        del row._store, row.slab

    def _capacity(self, tokens: int, room: int) -> int | None:
        """The capacity for `tokens`: one of few, so that rows share slabs, or the least where room is scarce."""
        least = self.rounded(tokens)
        if least <= self._place and self._has_place():
            return self._place
        if least > room:
            return None
        step = BLOCK
        while least > 4 * step:
            step *= 2
        shared = -(-least // step) * step
        return shared if shared <= room else least

    def _seat(self, row: KVRow, capacity: int) -> None:
        """Put `row` into a slab of this capacity, a new one where all are full."""
        slab = next((one for one in self._slabs if one.capacity == capacity and None in one.rows), None)
        if slab is None:
            self._give_up_spare_slots(capacity)
            slab = self._new_slab(capacity)
            self._slabs.append(slab)
        slab.seat(row)

    def _new_slab(self, capacity: int) -> Slab:
        if capacity == self._place and self._has_place():
            return Slab(self.shape, capacity, self._together, fixed=True)
        room = min(self.total - self.held, self.total // _SLAB_SHARE)
        return Slab(self.shape, capacity, max(1, min(MAX_SLOTS, room // capacity)))

    def _room(self, row: KVRow | None = None) -> int:
        """Tokens that a row outside the common slab may take, `row` giving up its own; places are held as a whole."""
        common = self._common()
        if common is None:
            return self.free + (row.capacity if row is not None else 0)
        others = [one for one in common.rows if one is not None and one is not row]
        outside = self.used - self._place * len(others) - (row.capacity if row is not None else 0)
        return self.total - outside - (common.tokens if others else 0)

    def _common(self) -> Slab | None:
        return next((slab for slab in self._slabs if slab.fixed), None)

    def _has_place(self) -> bool:
        """Whether the common slab has a free slot, or memory is free for it."""
        common = self._common()
        if common is not None:
            return None in common.rows
        return self.held + self._place * (self._together + 1) <= self.total

    def _give_up_spare_slots(self, wanted: int) -> None:
        """Shrink slabs until memory is free for `wanted` more tokens, those first that take least copying."""
        spare = [slab for slab in self._slabs if None in slab.rows and not slab.fixed]
        for slab in sorted(spare, key=lambda one: one.tokens - one.rows.count(None) * one.capacity):
            if self.held + wanted <= self.total:
                return
            slab.shrink()

    def _drop_if_empty(self, slab: Slab) -> None:
        if not any(slab.rows):
            self._slabs.remove(slab)
