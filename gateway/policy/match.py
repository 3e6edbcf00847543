"""Finds the first rule that holds, in microseconds: by tables (`index.py`), by closures for what they leave. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import datetime
from fnmatch import translate
from operator import attrgetter
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from gateway.policy.conditions import (
    AllOf,
    Always,
    AnyOf,
    Between,
    Condition,
    Flag,
    Header,
    Not,
    OneOf,
    Share,
    Window,
)
from gateway.policy.facts import Facts
from gateway.policy.index import Index, Test

if TYPE_CHECKING:
    from gateway.policy.schema import Policy, Rule


class Matcher:
    """The compiled rules of one policy."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._index = Index(rules, compile_condition)

    def __call__(self, facts: Facts) -> Rule:
        """Return the first rule that holds."""
        return self._first(facts, self._index.everything)

    def enforced(self, facts: Facts) -> Rule:
        """Return the first rule that holds and is not merely observed."""
        return self._first(facts, self._index.enforced)

    def _first(self, facts: Facts, among: int) -> Rule:
        left = self._index.rows(facts, among)
        while left:
            lowest = left & -left
            test, rule = self._index.entries[lowest.bit_length() - 1]
            if test is None or test(facts):
                return rule
            left ^= lowest
        raise AssertionError("a policy ends with a rule without conditions")


def match(policy: Policy, facts: Facts) -> Rule:
    """Return the first rule of the policy that holds; there always is one. It may be in mode `observe`."""
    return policy.matcher(facts)


def enforced(policy: Policy, facts: Facts) -> Rule:
    """Return the rule that applies where observed ones are passed over: what a request takes meanwhile."""
    return policy.matcher.enforced(facts)


def compile_condition(condition: Condition) -> Test | None:
    """Return a function that tests the condition, or None where it always holds."""
    match condition:
        case Always():
            return None
        case AllOf(parts):
            return _all([test for test in map(compile_condition, parts) if test is not None])
        case AnyOf(parts):
            tests = [compile_condition(part) for part in parts]
            return None if None in tests else _any([test for test in tests if test is not None])
        case Not(part):
            inner = compile_condition(part)
            return (lambda _: False) if inner is None else (lambda facts: not inner(facts))
        case _:
            return _leaf(condition)


def _leaf(condition: Condition) -> Test:  # noqa: PLR0911  # one line per kind of leaf
    match condition:
        case OneOf(key, values):
            return _text(attrgetter(key), values, always_text=True)
        case Between():
            return _between(condition)
        case Flag(key, value):
            get = attrgetter(key)
            return (lambda facts: bool(get(facts))) if value else (lambda facts: not get(facts))
        case Header(name, values, present):
            if not values:
                return lambda facts: (name in facts.headers) is present
            return _text(lambda facts: facts.headers.get(name), values)
        case Window():
            return _window(condition)
        case Share(share):
            return lambda facts: facts.share < share
    raise TypeError(f"no such condition: {condition!r}")


def _all(tests: list[Test]) -> Test | None:
    if not tests:
        return None
    if len(tests) == 1:
        return tests[0]
    if len(tests) == 2:
        first, second = tests
        return lambda facts: first(facts) and second(facts)

    def every(facts: Facts) -> bool:
        for test in tests:  # noqa: SIM110  # a generator would cost more than the tests
            if not test(facts):
                return False
        return True

    return every


def _any(tests: list[Test]) -> Test:
    def some(facts: Facts) -> bool:
        for test in tests:  # noqa: SIM110  # a generator would cost more than the tests
            if test(facts):
                return True
        return False

    return some


def _has_wildcard(value: str) -> bool:
    return "*" in value


def _expression(pattern: str) -> str:
    """Return a regular expression, free of backtracking, in which only `*` is special."""
    return translate(pattern.replace("[", "[[]").replace("?", "[?]"))


def _text(get: Callable[[Facts], Any], values: tuple[str, ...], *, always_text: bool = False) -> Test:
    """Compare with literals by a set and with patterns by one regular expression."""
    literals = frozenset(value for value in values if not _has_wildcard(value))
    patterns = [value for value in values if _has_wildcard(value)]
    if not patterns:
        if len(literals) == 1:
            (only,) = literals
            return lambda facts: bool(get(facts) == only)
        return lambda facts: get(facts) in literals
    if all(pattern.find("*") == len(pattern) - 1 for pattern in patterns):
        prefixes = tuple(pattern[:-1] for pattern in patterns)
        if always_text and not literals:
            return lambda facts: bool(get(facts).startswith(prefixes))
        return lambda facts: (value := get(facts)) is not None and (value in literals or value.startswith(prefixes))
    fits = re.compile("|".join(f"(?:{_expression(pattern)})" for pattern in patterns)).match

    def test(facts: Facts) -> bool:
        value = get(facts)
        return value is not None and (value in literals or fits(value) is not None)

    return test


def _between(interval: Between) -> Test:
    get, low, high = attrgetter(interval.key), interval.low, interval.high
    if not (interval.low_open or interval.high_open):
        return lambda facts: low <= get(facts) <= high

    def test(facts: Facts) -> bool:
        value = get(facts)
        above = value > low if interval.low_open else value >= low
        return bool(above and (value < high if interval.high_open else value <= high))

    return test


def _window(window: Window) -> Test:
    days, start, end, zone = frozenset(window.days), window.start, window.end, ZoneInfo(window.zone)

    def test(facts: Facts) -> bool:
        local = datetime.fromtimestamp(facts.at, zone)
        minute, day = local.hour * 60 + local.minute, local.weekday()
        if start < end:
            return start <= minute < end and day in days
        return (minute >= start and day in days) or (minute < end and (day - 1) % 7 in days)

    return test
