"""Which rules can hold for a request at all, by its task, one more fact and one number. Used by `match.py`; pure.

Rules often number in the hundreds and name an application, a header or a range of prompt lengths each. A table from
those to the few rules that may hold makes the look-up independent of how many there are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from gateway.policy.conditions import NUMBER_KEYS, AllOf, Always, Between, Condition, Header, NumberKey, OneOf
from gateway.policy.facts import Facts

if TYPE_CHECKING:
    from gateway.policy.schema import Rule

Test = Callable[[Facts], bool]
Entry = tuple[Test | None, "Rule"]
Entries = tuple[Entry, ...]
_SECOND = ("app", "key", "model", "adapter", "service_tier")
_LARGEST_TABLE = 500_000
_LONG = 16
"""Shorter lists are looked through."""


class Row(NamedTuple):
    """One rule, taken apart."""

    tasks: frozenset[str] | None
    """Tasks that it demands by name; None: any."""
    words: frozenset[str] | None
    """Words that it demands of the second fact; None: any."""
    spans: dict[NumberKey, Between]
    """Intervals that it demands."""
    entry: Entry


class Index:
    """From facts to the rules that may hold, in order."""

    def __init__(self, rules: Sequence[Rule], compiled: Callable[[Condition], Test | None]) -> None:
        second = _most_named(rules)
        tasks, values = _demanded(rules, "task"), _demanded(rules, second)
        if (len(tasks) + 1) * len(values) * len(rules) > _LARGEST_TABLE:
            second, values = None, set()
        self._get = _getter(second)
        self._budget = _LARGEST_TABLE
        rows = [_row(rule, second, compiled) for rule in rules]
        self._by_task = {task: self._by_value(rows, task, values) for task in tasks}
        self._others = self._by_value(rows, None, values)

    def candidates(self, facts: Facts) -> Entries:
        """Return the rules that may hold."""
        by_value, rest = self._by_task.get(facts.task, self._others)
        found = by_value.get(self._get(facts), rest)
        return found if type(found) is tuple else found.at(facts)  # type: ignore[union-attr]  # a tuple or Segments

    def _by_value(
        self, rows: Sequence[Row], task: str | None, values: set[str]
    ) -> tuple[dict[str, Entries | Segments], Entries | Segments]:
        """Return the rules that can hold for a task, by the second fact's words and for all other words."""
        possible = [row for row in rows if row.tasks is None or task in row.tasks]
        by_value = {
            value: self._list([row for row in possible if row.words is None or value in row.words]) for value in values
        }
        return by_value, self._list([row for row in possible if row.words is None])

    def _list(self, rows: list[Row]) -> Entries | Segments:
        """Return the rules as they are, or cut by a number where many of them demand one."""
        counts = {key: sum(key in row.spans for row in rows) for key in NUMBER_KEYS}
        key = max(NUMBER_KEYS, key=counts.__getitem__)
        cost = 4 * counts[key] * len(rows)
        if len(rows) <= _LONG or counts[key] * 2 < len(rows) or cost > self._budget:
            return tuple(row.entry for row in rows)
        self._budget -= cost
        return Segments(rows, key)


class Segments:
    """A list of rules for each stretch of a number between the bounds that they name, and for each bound itself."""

    def __init__(self, rows: Sequence[Row], key: NumberKey) -> None:
        bounds = {bound for row in rows if key in row.spans for bound in (row.spans[key].low, row.spans[key].high)}
        self._points = sorted(bounds - {float("-inf"), float("inf")})
        self._get = attrgetter(key)
        middles = [(low + high) / 2 for low, high in zip(self._points, self._points[1:], strict=False)]
        inner = [value for pair in zip(self._points, [*middles, self._points[-1] + 1], strict=True) for value in pair]
        self._lists = [
            tuple(row.entry for row in rows if key not in row.spans or _inside(row.spans[key], value))
            for value in (self._points[0] - 1, *inner)
        ]

    def at(self, facts: Facts) -> Entries:
        """Return the rules that may hold at this number."""
        value = self._get(facts)
        at = bisect_left(self._points, value)
        exact = at < len(self._points) and self._points[at] == value
        return self._lists[2 * at + exact]


def _inside(span: Between, value: float) -> bool:
    above = value > span.low if span.low_open else value >= span.low
    return above and (value < span.high if span.high_open else value <= span.high)


def _row(rule: Rule, second: str | None, compiled: Callable[[Condition], Test | None]) -> Row:
    tasks, rest = take(rule.when, "task")
    words: frozenset[str] | None = None
    if second is not None:
        words, rest = take(rest, second)
    parts = rest.parts if isinstance(rest, AllOf) else (rest,)
    spans = {part.key: part for part in parts if isinstance(part, Between)}
    return Row(tasks, words, spans, (compiled(rest), rule))


def _most_named(rules: Sequence[Rule]) -> str | None:
    """Return the fact, besides the task, that most rules demand by literal words; None where hardly any does."""
    counts: dict[str, int] = {}
    for rule in rules:
        for key in _literal_keys(rule.when):
            counts[key] = counts.get(key, 0) + 1
    best = max(counts, key=lambda key: (counts[key], key), default=None)
    return best if best is not None and counts[best] > 3 else None


def _literal_keys(condition: Condition) -> set[str]:
    parts = condition.parts if isinstance(condition, AllOf) else (condition,)
    return {key for part in parts if (key := _literal_key(part)) in _SECOND or (key or "").startswith("header ")} - {""}


def _literal_key(part: Condition) -> str:
    """Return the fact of which a part demands literal words, else nothing."""
    if isinstance(part, OneOf):
        return "" if any("*" in value for value in part.values) else part.key
    if isinstance(part, Header) and part.values:
        return "" if any("*" in value for value in part.values) else f"header {part.name}"
    return ""


def _getter(key: str | None) -> Callable[[Facts], Any]:
    if key is not None and key.startswith("header "):
        name = key.removeprefix("header ")
        return lambda facts: facts.headers.get(name)
    return attrgetter(key or "task")


def _demanded(rules: Sequence[Rule], key: str | None) -> set[str]:
    """Return all words that rules demand of a fact."""
    return set() if key is None else {word for rule in rules for word in take(rule.when, key)[0] or ()}


def take(condition: Condition, key: str) -> tuple[frozenset[str] | None, Condition]:
    """Take a demand for literal words out of a conjunction: (the words or None, what remains to be tested)."""
    parts = condition.parts if isinstance(condition, AllOf) else (condition,)
    for index, part in enumerate(parts):
        if isinstance(part, OneOf | Header) and _literal_key(part) == key:
            rest = parts[:index] + parts[index + 1 :]
            return frozenset(part.values), AllOf(rest) if rest else Always()
    return None, condition
