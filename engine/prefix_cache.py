"""KV memory as the scheduler sees it: the pool, and the kept KV of finished requests for a conversation's next turn.

Kept KV never crosses cache keys and gives way to running sequences, least recently used first.
"""

from __future__ import annotations

from collections import OrderedDict

from engine.kv_cache import KVPool, KVRow
from engine.sequence import Sequence

MIN_REUSE = 16
"""Shorter common prefixes are not worth keeping apart."""
MAX_KEPT = 64


class KVMemory:
    """Implements `engine.scheduler.Memory` over a pool."""

    def __init__(self, pool: KVPool, *, reuse: bool) -> None:
        self._pool = pool
        self._reuse = reuse
        self._kept: OrderedDict[int, tuple[str, list[int], KVRow]] = OrderedDict()
        self._next = 0

    @property
    def used(self) -> int:
        """Tokens of capacity held by running sequences (kept prefixes are given up on demand)."""
        kept = list(self._kept.values())  # in one go: other threads ask
        return self._pool.used - sum(row.capacity for _, _, row in kept)

    @property
    def total(self) -> int:
        """Tokens of capacity in all."""
        return self._pool.total

    def admit(self, sequence: Sequence) -> bool:
        """Give the sequence KV for its tokens, reusing a kept prefix; False where there is no room now."""
        tokens = sequence.tokens
        best, common = self._longest(sequence)
        if best is not None and common >= len(self._kept[best][1]) // 2:
            key, _, row = self._kept.pop(best)
            row.truncate(common)
            if not self._grow(row, len(tokens) + 1):
                self._kept[best] = (key, tokens[:common], row)
                return False
            sequence.kv = row
        else:
            fresh = self._allocate(len(tokens) + 1, spare=best)
            if fresh is None:
                return False
            if best is not None:
                self._kept.move_to_end(best)
                fresh.copy_prefix(self._kept[best][2], common)
            sequence.kv = fresh
        if sequence.num_output == 0:
            sequence.cached_prompt_tokens = common
        return True

    def reserve(self, sequence: Sequence, tokens: int) -> bool:
        """Make sure that its KV holds `tokens`; kept prefixes give way."""
        return sequence.kv is not None and self._grow(sequence.kv, tokens)

    def release(self, sequence: Sequence) -> None:
        """Take the sequence's KV back, keeping it for a next turn where that is wanted."""
        row, sequence.kv = sequence.kv, None
        if row is None:
            return
        row.truncate(len(sequence.tokens))
        if not self._reuse or row.length < MIN_REUSE:
            self._pool.release(row)
            return
        self._next += 1
        self._kept[self._next] = (sequence.request.cache_key, sequence.tokens[: row.length], row)
        while len(self._kept) > MAX_KEPT:
            self._drop_oldest()

    def borrow(self, count: int, tokens: int) -> list[KVRow] | None:
        """Return `count` zeroed rows that belong to no request, or None where there is no room beside all others."""
        rows: list[KVRow] = []
        for _ in range(count):
            row = self._pool.allocate(tokens)
            if row is None:
                self.give_back(rows)
                return None
            row.zero()
            rows.append(row)
        return rows

    def give_back(self, rows: list[KVRow]) -> None:
        """Return borrowed rows."""
        for row in rows:
            self._pool.release(row)

    def clear(self) -> None:
        """Give up all kept prefixes."""
        while self._kept:
            self._drop_oldest()

    def _longest(self, sequence: Sequence) -> tuple[int | None, int]:
        """The kept row with the longest usable prefix; the last token is always computed anew, for its logits."""
        best, longest = None, MIN_REUSE - 1
        for number, (key, tokens, _) in self._kept.items():
            if key == sequence.request.cache_key:
                common = _common(tokens, sequence.tokens[:-1])
                if common > longest:
                    best, longest = number, common
        return (best, longest) if best is not None else (None, 0)

    def _allocate(self, tokens: int, spare: int | None) -> KVRow | None:
        row = self._pool.allocate(tokens)
        while row is None and self._drop_oldest(spare):
            row = self._pool.allocate(tokens)
        return row

    def _grow(self, row: KVRow, tokens: int) -> bool:
        while not self._pool.reserve(row, tokens):
            if not self._drop_oldest():
                return False
        return True

    def _drop_oldest(self, spare: int | None = None) -> bool:
        for number in self._kept:
            if number != spare:
                self._pool.release(self._kept.pop(number)[2])
                return True
        return False


def _common(left: list[int], right: list[int]) -> int:
    """Length of the common prefix, by halving: slices compare at C speed."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
