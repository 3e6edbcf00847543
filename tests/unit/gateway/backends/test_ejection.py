"""Which replicas are left out: after failures in a row, longer each time, never more than half."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.backends.ejection import FAILURES, FIRST_S, LONGEST_S, Ejector


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_failures_in_a_row_eject_and_longer_each_time() -> None:
    clock = Clock()
    pool = Ejector(3, clock)
    for round_ in range(1, 20):
        spared = [pool.failed("a") for _ in range(FAILURES - 1)] if round_ == 1 else []
        assert not any(spared)
        assert pool.failed("a")
        out_for = min(LONGEST_S, FIRST_S * round_)
        clock.now += out_for - 0.01
        assert pool.out("a")
        clock.now += 0.02
        assert not pool.out("a")  # back on trial: one more failure is enough
    pool.served("a")
    assert not any(pool.failed("a") for _ in range(FAILURES - 1))


def test_an_answer_between_failures_starts_the_count_again() -> None:
    pool = Ejector(2, Clock())
    for _ in range(10):
        assert not any(pool.failed("a") for _ in range(FAILURES - 1))
        pool.served("a")
    assert not pool.out("a")


@given(st.integers(1, 6), st.lists(st.tuples(st.integers(0, 5), st.booleans(), st.floats(0, 3)), max_size=80))
def test_never_more_than_half_are_out(size: int, events: list[tuple[int, bool, float]]) -> None:
    clock = Clock()
    pool = Ejector(size, clock)
    for which, good, passed in events:
        clock.now += passed
        (pool.served if good else pool.failed)(which % size)
        assert sum(pool.out(replica) for replica in range(size)) <= size // 2
