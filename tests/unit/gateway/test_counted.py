"""Counters as Redis tells them."""

import numpy as np
import pytest

from gateway.counted import NONE, Counters, counters_of, shape_of, taken_apart

BIG = 2**63 - 1


def test_cells_are_taken_apart_by_their_shapes():
    found = taken_apart(f"1,-2,{BIG},7".encode(), b"0,1,2,1", [b"n tok", b"fg", b""])
    assert [dict(each) for each in found] == [{"n": 1, "tok": -2}, {"fg": BIG}, {}, {"fg": 7}]
    assert found[1].shape is found[3].shape is shape_of(("fg",))
    assert taken_apart(b"", b"", []) == []


@pytest.mark.parametrize(
    ("values", "shapes", "names"),
    [
        (b"1,2", b"0", [b"n"]),
        (b"1", b"0", [b"n tok"]),
        (b"1,x", b"0", [b"n tok"]),
        (b"1x,2", b"0", [b"n tok"]),
        (b"1,2x", b"0", [b"n tok"]),
        (b"1.5", b"0", [b"n"]),
        (b"1", b"1", [b"n"]),
        (b"1", b"", [b"n"]),
    ],
)
def test_what_does_not_fit_together_is_refused(values, shapes, names):
    with pytest.raises(ValueError, match=r"unmatched|shape|names|literal"):
        taken_apart(values, shapes, names)


def test_they_read_like_a_dict():
    counters = Counters(shape_of(("n", "tok")), np.array([3, BIG]))
    assert (counters["tok"], counters.get("n"), counters.get("und", 0), len(counters)) == (BIG, 3, 0, 2)
    assert ("n" in counters, "und" in counters) == (True, False)
    assert (list(counters), list(counters.values())) == (["n", "tok"], [3, BIG])
    assert counters == {"n": 3, "tok": BIG}
    assert counters != {"n": 3, "tok": 1}
    assert counters_of({"n": 3, "tok": BIG}) == counters
    assert counters_of(counters) is counters
    assert (dict(NONE), bool(NONE), repr(counters)) == ({}, False, f"Counters({{'n': 3, 'tok': {BIG}}})")
