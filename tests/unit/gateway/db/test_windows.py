"""Which packed rows answer for a window: every minute once, in spans that are whole, none finer than is needed."""

from __future__ import annotations

import time
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.db.models import DAY, HOUR, MINUTE, PIECE, WEEK
from gateway.db.windows import ranges_of, wanted

NOW = int(time.time() // 60)


@given(st.integers(0, 46 * 60), st.integers(0, 3000), st.sampled_from([MINUTE, HOUR, DAY, WEEK]))
def test_every_minute_is_taken_once(age, length, finest):
    first = NOW - age
    seen = Counter()
    for span, a, b in ranges_of(first, first + length, finest):
        assert span <= finest
        assert a % span == 0
        assert (b + 1) % span == 0
        seen.update(range(a, b + 1))
    assert seen == Counter(range(first, first + length + 1))


def test_long_windows_are_mostly_weeks_and_begin_with_an_hour():
    last = NOW
    ranges = ranges_of(last - 90 * DAY, last)
    rows = {span: sum((b - a) // span + 1 for s, a, b in ranges if s == span) for span in (HOUR, DAY, WEEK)}
    assert rows[WEEK] >= 11
    assert rows[DAY] <= 12
    assert rows[HOUR] <= 46
    assert not [r for r in ranges if r[0] == MINUTE and r[2] < last - HOUR]


@pytest.mark.parametrize("finest", [HOUR, DAY])
def test_charts_read_nothing_longer_than_their_step(finest):
    assert {span for span, _, _ in ranges_of(NOW - 40 * DAY, NOW, finest)} >= {finest}
    assert max(span for span, _, _ in ranges_of(NOW - 40 * DAY, NOW, finest)) == finest


def test_minutes_beyond_the_window_are_left_out_of_a_piece():
    offsets = np.array([0, 3, 7, 14])
    assert wanted(HOUR, 0, offsets, []) is None
    assert wanted(MINUTE, 600, offsets, [(MINUTE, 600, 614)]) is None
    assert wanted(MINUTE, 600, offsets, [(MINUTE, 603, 607)]).tolist() == [1, 2]
    assert len(offsets) < PIECE
