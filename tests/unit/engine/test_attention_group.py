"""Rows that attend together get what each gets alone, whatever lies in the slots between and behind them."""

from __future__ import annotations

import math
import random

import pytest
import torch

from engine.attention import PackedBatch, RowInput
from engine.attention_group import grouped
from engine.kv_cache import BLOCK, KVPool, KVRow, KVShape

SHAPE = KVShape(1, 2, 8, torch.float32, torch.device("cpu"))
HEADS = 6


def pool_of(rows: int) -> tuple[KVPool, list[KVRow]]:
    pool = KVPool(SHAPE, 4 * rows * BLOCK)
    made = [pool.allocate(BLOCK) for _ in range(rows)]
    return pool, [row for row in made if row is not None]


def definition(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, past: int, rule: tuple[int | None, float | None]
) -> torch.Tensor:
    """Attention of one row in plain loops: query [count, heads, dim], keys and values [length, kv heads, dim]."""
    window, softcap = rule
    out = torch.zeros_like(query)
    for at in range(query.shape[0]):
        first = 0 if window is None else max(0, past + at + 1 - window)
        for head in range(HEADS):
            kv = head // (HEADS // SHAPE.heads)
            score = keys[first : past + at + 1, kv] @ query[at, head] / math.sqrt(8)
            if softcap is not None:
                score = torch.tanh(score / softcap) * softcap
            out[at, head] = torch.softmax(score, 0) @ values[first : past + at + 1, kv]
    return out


@pytest.mark.parametrize("rule", [(None, None), (7, None), (None, 2.0)])
@pytest.mark.parametrize("counts", [(1, 1, 1, 1, 1), (1, 3, 2, 1, 4), (1, 17, 1, 40, 2)])
def test_together_as_alone(counts: tuple[int, ...], rule: tuple[int | None, float | None]) -> None:
    """Rows in no particular order, a slot left free between them, garbage behind every row's end."""
    rng = random.Random(5)
    torch.manual_seed(5)
    pool, rows = pool_of(6)
    pool.release(rows.pop(2))
    for row in rows:
        row.length = rng.randrange(3, 20)
        row._store[..., : row.length, :] = torch.randn(1, 2, 1, 2, row.length, 8)
        row._store[..., row.length :, :] = 1e3
    rng.shuffle(rows)
    size = sum(counts)
    query, key, value = torch.randn(size, HEADS, 8), torch.randn(size, 2, 8), torch.randn(size, 2, 8)
    before = [row._store[0, :, 0, :, : row.length].clone() for row in rows]
    inputs = [RowInput(row, [3] * count, count) for row, count in zip(rows, counts, strict=True)]
    batch = PackedBatch(inputs, SHAPE.device)
    got = batch.attend(0, query, key, value, 1 / math.sqrt(8), *rule).view(size, HEADS, 8)
    batch.commit()
    start = 0
    for row, count, stored in zip(rows, counts, before, strict=True):
        part = slice(start, start + count)
        keys = torch.cat((stored[0].transpose(0, 1), key[part]))
        values = torch.cat((stored[1].transpose(0, 1), value[part]))
        want = definition(query[part], keys, values, stored.shape[2], rule)
        torch.testing.assert_close(got[part], want, atol=1e-5, rtol=1e-4)
        assert row.length == stored.shape[2] + count
        torch.testing.assert_close(row._store[0, 0, 0, :, : row.length], keys.transpose(0, 1))
        start += count


def test_what_an_earlier_tenant_left_reaches_nobody() -> None:
    """A slot whose tenant ended in NaN, behind and between others: nothing of it is seen."""
    pool, rows = pool_of(3)
    rows[1]._store.fill_(math.nan)
    pool.release(rows.pop(1))
    fresh = pool.allocate(BLOCK)
    assert fresh is not None
    batch = PackedBatch([RowInput(row, [3], 1) for row in (*rows, fresh)], SHAPE.device)
    out = batch.attend(0, torch.ones(3, HEADS, 8), torch.ones(3, 2, 8), torch.ones(3, 2, 8), 1.0)
    torch.testing.assert_close(out, torch.ones(3, HEADS * 8))


def test_who_attends_together() -> None:
    _, rows = pool_of(5)
    assert grouped([(row, 1) for row in reversed(rows)]) == ([[4, 3, 2, 1, 0]], [])
    assert grouped([(rows[0], 1), (rows[4], 1)]) == ([], [0, 1]), "three slots of padding"
    together, alone = grouped([(rows[0], 1), (rows[1], 17), (rows[2], 1), (rows[3], 300)])
    assert (together, sorted(alone)) == ([[0, 2]], [1, 3]), "a prompt's chunk and a long draft each go alone"
    together, alone = grouped([(rows[0], 1), (rows[1], 1), (rows[2], 1), (rows[3], 17)])
    assert (together, alone) == ([[0, 1, 2]], [3]), "a long draft does not pad the plain rows"
