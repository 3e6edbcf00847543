"""Which rows of an index one fact allows, as a bit mask: bit n stands for row n. For `index.py`; pure.

Each class serves one fact. It is told which rows demand what of it, and then says, for a request's value, the rows
that this value does not rule out. What a value allows is looked up, not tested rule by rule.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable
from datetime import datetime
from fnmatch import translate
from operator import attrgetter
from zoneinfo import ZoneInfo

from gateway.policy.conditions import Between, Condition, Flag, Header, OneOf, Share, Window
from gateway.policy.facts import Facts

_REMEMBERED = 4096
"""Values of a fact whose mask is kept, at most: applications, models and teams come again and again."""
_MEMORY = 8 << 20
"""Bits that the remembered masks of one fact may take."""
_LONGEST = 256
"""Characters of a value that is worth remembering."""
_INFINITE = float("inf")


def room_for(everything: int) -> int:
    """Return how many masks of that length may be remembered."""
    return max(64, min(_REMEMBERED, _MEMORY // everything.bit_length()))


class Fact:
    """One fact: the rows that demand something of it, and those that demand the opposite."""

    def __init__(self) -> None:
        self.demanding = 0
        self.negated = 0

    def add(self, row: int, leaf: Condition, negated: bool) -> None:
        """Note that a row demands this condition, or its opposite."""
        bit = 1 << row
        self.demanding |= bit
        if negated:
            self.negated |= bit
        self.note(row, leaf)

    def note(self, row: int, leaf: Condition) -> None:
        """Note which values satisfy the condition."""
        raise NotImplementedError

    def finish(self, everything: int) -> None:
        """Make ready to be asked; `everything` has a bit for each row."""
        self.free = everything & ~self.demanding
        self.room = room_for(everything)
        """How many masks may be remembered."""

    def allowed(self, satisfied: int) -> int:
        """Return the rows left where these rows' conditions are satisfied."""
        return (satisfied ^ self.negated) | self.free

    def at(self, facts: Facts) -> int:
        """Return the rows that a request's value leaves."""
        raise NotImplementedError


class Words(Fact):
    """A text, compared with words and with patterns in which `*` stands for any characters."""

    def __init__(self, get: Callable[[Facts], str | None]) -> None:
        super().__init__()
        self._get = get
        self._literals: dict[str, list[int]] = {}
        self._starts: dict[int, dict[str, list[int]]] = {}
        self._ends: dict[int, dict[str, list[int]]] = {}
        self._others: dict[str, list[int]] = {}
        self._present = 0
        self._absent = 0
        self._tests: list[tuple[str, Callable[[str], object], list[int]]] = []
        self._known: dict[str | None, int] = {}

    def note(self, row: int, leaf: Condition) -> None:
        """Sort words and patterns by how they are looked up."""
        if isinstance(leaf, Header) and not leaf.values:
            if leaf.present:
                self._present |= 1 << row
            else:
                self._absent |= 1 << row
        elif isinstance(leaf, OneOf | Header):
            for word in leaf.values:
                self._note_word(word, row)

    def _note_word(self, word: str, row: int) -> None:
        stars = word.count("*")
        if not stars:
            table, key = self._literals, word
        elif stars == 1 and word.endswith("*"):
            table, key = self._starts.setdefault(len(word) - 1, {}), word[:-1]
        elif stars == 1 and word.startswith("*"):
            table, key = self._ends.setdefault(len(word) - 1, {}), word[1:]
        else:
            table, key = self._others, word
        table.setdefault(key, []).append(row)

    def finish(self, everything: int) -> None:
        """Compile the patterns that no table can look up."""
        super().finish(everything)
        for pattern, rows in self._others.items():
            fits = re.compile(translate(pattern.replace("[", "[[]").replace("?", "[?]"))).match
            self._tests.append((max(pattern.split("*"), key=len), fits, rows))

    def at(self, facts: Facts) -> int:
        """Return the rows that a request's value leaves."""
        value = self._get(facts)
        try:
            return self._known[value]
        except KeyError:
            return self._look_up(value)

    def _look_up(self, value: str | None) -> int:
        """Find a value's mask and remember it."""
        mask = self.allowed(self._absent if value is None else self._present | self._satisfied(value))
        if value is None or len(value) <= _LONGEST:
            if len(self._known) >= self.room:
                self._known.clear()
            self._known[value] = mask
        return mask

    def _satisfied(self, value: str) -> int:
        rows = list(self._literals.get(value, ()))
        length = len(value)
        for size, table in self._starts.items():
            if size <= length:
                rows += table.get(value[:size], ())
        for size, table in self._ends.items():
            if size <= length:
                rows += table.get(value[length - size :], ())
        for part, fits, those in self._tests:
            if part in value and fits(value) is not None:
                rows += those
        mask = 0
        for row in rows:
            mask |= 1 << row
        return mask


class Headers:
    """All headers that rules name. A request has few of them: those it lacks are settled in one step."""

    def __init__(self) -> None:
        self._by_name: dict[str, Words] = {}
        self._rest: dict[tuple[str, ...], int] = {}

    @property
    def named(self) -> bool:
        """Whether any rule names a header."""
        return bool(self._by_name)

    def add(self, row: int, leaf: Header, negated: bool) -> None:
        """Note that a row demands something of a header."""
        name = leaf.name
        if name not in self._by_name:
            self._by_name[name] = Words(lambda facts: facts.headers.get(name))
        self._by_name[name].add(row, leaf, negated)

    def finish(self, everything: int) -> None:
        """Make ready to be asked."""
        self._everything, self._room = everything, room_for(everything)
        for words in self._by_name.values():
            words.finish(everything)

    def at(self, facts: Facts) -> int:
        """Return the rows that a request's headers leave."""
        here = tuple([name for name in facts.headers if name in self._by_name])
        rows = self._rest.get(here)
        if rows is None:
            rows = self._without(here)
        for name in here:
            rows &= self._by_name[name].at(facts)
        return rows

    def _without(self, here: tuple[str, ...]) -> int:
        """Return the rows left by the absence of all other headers."""
        rows, nobody = self._everything, Facts()
        for name, words in self._by_name.items():
            if name not in here:
                rows &= words.at(nobody)
        if len(self._rest) >= self._room:
            self._rest.clear()
        self._rest[here] = rows
        return rows


class Numbers(Fact):
    """A number, by the stretches between the bounds that rules name, and by each bound itself."""

    def __init__(self, key: str) -> None:
        super().__init__()
        self._get = attrgetter(key)
        self._spans: list[tuple[int, Between]] = []
        self.points: list[float] = []
        self._masks: list[int] = []

    def note(self, row: int, leaf: Condition) -> None:
        """Note an interval."""
        if isinstance(leaf, Share):
            leaf = Between("load", high=leaf.share, high_open=True)
        if isinstance(leaf, Between):
            self._spans.append((row, leaf))

    def finish(self, everything: int) -> None:
        """Find the mask of every stretch: position 2n is below bound n, position 2n + 1 the bound itself."""
        super().finish(everything)
        bounds = {bound for _, span in self._spans for bound in (span.low, span.high)}
        self.points = sorted(bounds - {-_INFINITE, _INFINITE})
        where = {bound: 2 * at + 1 for at, bound in enumerate(self.points)}
        where |= {-_INFINITE: 0, _INFINITE: 2 * len(self.points)}
        turns: list[list[int]] = [[] for _ in range(2 * len(self.points) + 2)]
        for row, span in self._spans:
            first = where[span.low] + (span.low_open and span.low != -_INFINITE)
            last = where[span.high] - (span.high_open and span.high != _INFINITE)
            if first <= last:
                turns[first].append(row)
                turns[last + 1].append(row)
        satisfied = 0
        for rows in turns[:-1]:
            for row in rows:
                satisfied ^= 1 << row
            self._masks.append(self.allowed(satisfied))

    def at(self, facts: Facts) -> int:
        """Return the rows that a request's value leaves."""
        value, points = self._get(facts), self.points
        at = bisect_left(points, value)
        return self._masks[2 * at + (at < len(points) and points[at] == value)]


class Flags(Fact):
    """A yes or no."""

    def __init__(self, key: str) -> None:
        super().__init__()
        self._get = attrgetter(key)
        self._rows = [0, 0]
        self._masks = [0, 0]

    def note(self, row: int, leaf: Condition) -> None:
        """Note which of the two is demanded."""
        if isinstance(leaf, Flag):
            self._rows[leaf.value] |= 1 << row

    def finish(self, everything: int) -> None:
        """Find both masks."""
        super().finish(everything)
        self._masks = [self.allowed(rows) for rows in self._rows]

    def at(self, facts: Facts) -> int:
        """Return the rows that a request's value leaves."""
        return self._masks[bool(self._get(facts))]


class Times(Fact):
    """The time of arrival, in whole minutes: what a minute allows is found once."""

    def __init__(self) -> None:
        super().__init__()
        self._windows: dict[str, list[tuple[int, Window]]] = {}
        self._last = (-1, 0)

    def note(self, row: int, leaf: Condition) -> None:
        """Note a window."""
        if isinstance(leaf, Window):
            self._windows.setdefault(leaf.zone, []).append((row, leaf))

    def at(self, facts: Facts) -> int:
        """Return the rows that the time of arrival leaves."""
        now = int(facts.at // 60)
        minute, mask = self._last
        if minute != now:
            mask = self.allowed(self._satisfied(facts.at))
            self._last = (now, mask)
        return mask

    def _satisfied(self, at: float) -> int:
        rows = 0
        for zone, windows in self._windows.items():
            local = datetime.fromtimestamp(at, ZoneInfo(zone))
            minute, day = local.hour * 60 + local.minute, local.weekday()
            for row in inside(windows, minute, day):
                rows |= 1 << row
        return rows


def inside(windows: Iterable[tuple[int, Window]], minute: int, day: int) -> Iterable[int]:
    """Return the rows whose window holds; one that spans midnight belongs to the day on which it began."""
    for row, window in windows:
        start, end, days = window.start, window.end, window.days
        if start < end:
            if start <= minute < end and day in days:
                yield row
        elif (minute >= start and day in days) or (minute < end and (day - 1) % 7 in days):
            yield row
