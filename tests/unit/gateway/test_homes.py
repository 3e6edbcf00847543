"""Which backend answered a conversation last: remembered for the latest conversations only."""

from gateway.homes import Homes


def test_the_latest_conversations_are_remembered() -> None:
    homes = Homes(kept=2)
    homes.note("", "a")
    homes.note("one", "a")
    homes.note("two", "b")
    homes.note("one", "c")
    homes.note("three", "a")
    assert [homes.of(name) for name in ("", "one", "two", "three")] == ["", "c", "", "a"]
