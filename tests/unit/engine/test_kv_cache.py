"""Budget, growth and kept prefixes: nothing is lost, nothing leaks, keys never mix."""

from __future__ import annotations

import random

import torch

from engine.control import Controller
from engine.kv_cache import BLOCK, KVPool, KVRow, KVShape
from engine.messages import Speculation
from engine.prefix_cache import MIN_REUSE, KVMemory
from engine.sequence import GenerateRequest, SamplingParams, Sequence

SHAPE = KVShape(2, 3, 4, torch.float32, torch.device("cpu"))


def sequence(tokens: list[int], key: str = "") -> Sequence:
    asked = GenerateRequest("x", tokens, SamplingParams(), Speculation("plain", 0), cache_key=key)
    return Sequence(asked, Controller(0, None), 0.0, list(tokens), len(tokens))


def filled(memory: KVMemory, tokens: list[int], key: str = "") -> None:
    """Admit, pretend to compute with values that tell the position, and release."""
    one = sequence(tokens, key)
    assert memory.admit(one)
    for stored in one.row.views(0, len(tokens))[0]:
        stored[:] = torch.tensor(tokens)[:, None]
    one.row.length = len(tokens)
    memory.release(one)


def test_bytes_per_token() -> None:
    assert SHAPE.bytes_per_token == 2 * 2 * 3 * 4 * 4


def test_the_budget_is_never_exceeded_and_comes_back() -> None:
    pool = KVPool(SHAPE, 4 * BLOCK)
    first, second = pool.allocate(2 * BLOCK), pool.allocate(BLOCK)
    assert first is not None
    assert second is not None
    assert pool.allocate(2 * BLOCK) is None
    assert pool.reserve(second, 2 * BLOCK)
    assert not pool.reserve(second, 2 * BLOCK + 1)
    assert pool.free == 0
    pool.release(first)
    pool.release(second)
    assert pool.used == 0


def test_spare_slots_give_way_and_rows_keep_their_contents() -> None:
    """Random sizes come, grow and go: memory is never taken beyond the budget, no row sees another's values."""
    rng = random.Random(4)
    pool = KVPool(SHAPE, 24 * BLOCK)
    rows: dict[int, KVRow] = {}
    for number in range(300):
        row = pool.allocate(rng.choice((10, 60, 100, 250)))
        if row is not None:
            rows[number] = row
        elif rows:
            pool.release(rows.pop(rng.choice(list(rows))))
        for name, one in rows.items():
            if rng.random() < 0.1:
                pool.reserve(one, one.capacity + 1)
            one._store[..., one.length : one.length + 1, :] = name
            one.length = min(one.length + 1, one.capacity)
        assert pool.used == sum(one.capacity for one in rows.values()) <= pool.held <= pool.total
        assert all(bool((one._store[..., : one.length, :] == name).all()) for name, one in rows.items())
    for one in rows.values():
        pool.release(one)
    assert pool.used == pool.held == 0


def test_truncation_never_lengthens() -> None:
    row = KVPool(SHAPE, BLOCK).allocate(10)
    assert row is not None
    row.length = 5
    row.truncate(9)
    assert row.length == 5
    row.truncate(2)
    assert row.length == 2


def test_the_next_turn_takes_over_the_kept_row() -> None:
    memory = KVMemory(KVPool(SHAPE, 8 * BLOCK), reuse=True)
    text = list(range(40))
    filled(memory, text)
    turn = sequence([*text, 90, 91])
    assert memory.admit(turn)
    assert turn.cached_prompt_tokens == turn.row.length == 40
    assert turn.row.views(0, 40)[1][1][0, 0, :, 0].tolist() == text
    assert memory.used == turn.row.capacity


def test_a_shared_beginning_is_copied_and_stays_for_others() -> None:
    memory = KVMemory(KVPool(SHAPE, 32 * BLOCK), reuse=True)
    system = list(range(30))
    filled(memory, system + [50] * 60)
    for tail in (60, 70):
        other = sequence([*system, *[tail] * 5])
        assert memory.admit(other)
        assert other.cached_prompt_tokens == 30
        assert other.row.views(0, 30)[1][0][0, 0, :, 0].tolist() == system


def test_the_last_prompt_token_is_always_computed() -> None:
    memory = KVMemory(KVPool(SHAPE, 8 * BLOCK), reuse=True)
    text = list(range(40))
    filled(memory, text)
    again = sequence(text)
    assert memory.admit(again)
    assert again.num_uncomputed == 1


def test_keys_never_mix() -> None:
    memory = KVMemory(KVPool(SHAPE, 8 * BLOCK), reuse=True)
    filled(memory, list(range(40)), key="a")
    other = sequence(list(range(40)), key="b")
    assert memory.admit(other)
    assert other.cached_prompt_tokens == 0


def test_kept_rows_give_way() -> None:
    memory = KVMemory(KVPool(SHAPE, 4 * BLOCK), reuse=True)
    for at in range(4):
        filled(memory, [at] * 40)
    assert memory.used == 0
    big = sequence([9] * (3 * BLOCK))
    assert memory.admit(big)
    assert memory.reserve(big, 4 * BLOCK)
    assert not memory.reserve(big, 4 * BLOCK + 1)


def test_a_prefix_that_cannot_grow_is_not_lost() -> None:
    pool = KVPool(SHAPE, 4 * BLOCK)
    memory = KVMemory(pool, reuse=True)
    running = sequence([7] * (2 * BLOCK))
    assert memory.admit(running)
    text = list(range(BLOCK - 2))
    filled(memory, text)
    turn = sequence([*text, *[1] * (2 * BLOCK)])
    assert not memory.admit(turn)
    assert turn.kv is None
    memory.release(running)
    assert memory.admit(turn)


def test_short_or_unwanted_prefixes_are_not_kept() -> None:
    for reuse, length in ((True, MIN_REUSE - 1), (False, 40)):
        pool = KVPool(SHAPE, 8 * BLOCK)
        filled(KVMemory(pool, reuse=reuse), list(range(length)))
        assert pool.used == 0
