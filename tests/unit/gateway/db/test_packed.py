"""Packed columns and histograms: what goes in comes out, small, and damage is noticed."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.db.packed import code_of, code_parts, pack, pack_histograms, sum_by, unpack, unpack_histograms
from gateway.histogram import LAST_BUCKET

NUMBERS = st.one_of(st.integers(-2, 200), st.integers(-(2**63), 2**63 - 1))
COLUMNS = st.lists(st.lists(NUMBERS, max_size=20), max_size=6)
ENTRIES = st.lists(
    st.tuples(st.integers(0, 14), st.integers(1, 9), st.integers(0, LAST_BUCKET), st.integers(1, 10**9)), max_size=60
)


def whole(values):
    return np.array(values, dtype=np.int64)


@given(COLUMNS)
def test_columns_come_out_as_they_went_in(columns):
    packed = pack([whole(column) for column in columns])
    assert [column.tolist() for column in unpack(packed)] == columns
    assert [column.tolist() for column in unpack(packed, range(1, len(columns)))] == columns[1:]


def test_zeros_and_small_numbers_take_little():
    assert len(pack([np.zeros(100_000, dtype=np.int64)] * 40)) < 400
    assert len(pack([np.random.default_rng(1).integers(-128, 128, 10_000)])) < 10_300


@pytest.mark.parametrize("damage", [lambda p: p[:0], lambda p: b"\2" + p[1:], lambda p: p[:-3], lambda p: p[:1] + b"x"])
def test_damage_is_an_error(damage):
    with pytest.raises(ValueError, match="packed columns"):
        unpack(damage(pack([whole([1, 2, 300])])))


@given(ENTRIES)
def test_histograms_of_one_place_are_added_up(given_entries):
    offsets, cells, buckets, counts = whole(given_entries).reshape(-1, 4).T
    (at, of), lengths, out, numbers = unpack_histograms(pack_histograms([offsets, cells], buckets, counts))
    places = zip(np.repeat(at, lengths).tolist(), np.repeat(of, lengths).tolist(), out.tolist(), strict=True)
    found = dict(zip(places, numbers.tolist(), strict=True))
    expected = Counter()
    for offset, cell, bucket, count in given_entries:
        expected[offset, cell, bucket] += count
    assert found == expected
    assert len(numbers) == len(expected)


@given(st.lists(st.tuples(st.integers(0, 2**40), st.integers(-(10**6), 10**6), st.integers(0, 99)), max_size=40))
def test_sums_by_code(rows):
    high, draw, value = whole(rows).reshape(-1, 3).T
    codes, sums = sum_by(code_of(high, draw), np.stack([value, 0 * value + 1]))
    expected, times = Counter(), Counter()
    for one, other, number in rows:
        expected[one, other] += number
        times[one, other] += 1
    places = list(zip(*(part.tolist() for part in code_parts(codes)), strict=True))
    assert places == sorted(times)
    assert sums.tolist() == [[expected[place] for place in places], [times[place] for place in places]]
