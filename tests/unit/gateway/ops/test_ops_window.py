"""Windows of time as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidRequest
from gateway.ops.window import WINDOWS, parse_window, window_name


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("15m", 900), ("24h", 86400), ("7d", 604800), ("2w", 1209600)]
)
def test_forms(text, seconds):
    assert parse_window(text) == seconds


@pytest.mark.parametrize("text", ["", "7", "d", "-1d", "0h", "1.5h", "7 days", "999999999w", "1e3s", "٣d"])
def test_anything_else_says_what_was_expected(text):
    with pytest.raises(InvalidRequest, match="expected a number with s, m, h, d or w") as caught:
        parse_window(text)
    assert caught.value.param == "since"


def test_the_pages_windows_keep_their_names():
    assert [window_name(parse_window(name)) for name in WINDOWS] == list(WINDOWS)


@given(st.integers(1, 10**8))
def test_name_is_a_window_of_the_same_length(seconds):
    assert parse_window(window_name(seconds)) == seconds
