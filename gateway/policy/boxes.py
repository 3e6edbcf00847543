"""Conditions as unions of boxes, so that `lint.py` can say whether one rule contains or meets another. Pure.

A box allows, for each fact it speaks of, a set of words or an interval; what cannot be put that way (hours, crossed
patterns) is kept as it is and only compared for equality. Containment is never claimed where it does not hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from functools import reduce
from typing import NamedTuple

from gateway.policy.conditions import AllOf, Always, AnyOf, Between, Condition, Flag, Header, Not, OneOf, Share

MAX_BOXES = 64
ABSENT = "\0absent"
"""Stands for the value of a header that is not there."""
_HEADER = "header "


class TooComplex(Exception):  # control flow, not an error of its own
    """The condition has more alternatives than are looked at."""


class Words(NamedTuple):
    """Texts allowed (None: any) but for those denied; `*` stands for any characters."""

    allowed: frozenset[str] | None = None
    denied: frozenset[str] = frozenset()

    def holds(self, word: str) -> bool:
        """Return whether a literal is in the set."""
        return (self.allowed is None or _any_matches(self.allowed, word)) and not _any_matches(self.denied, word)

    def within(self, other: Words) -> bool:
        """Return whether this set is surely part of the other."""
        if self.allowed is None:
            return other.allowed is None and other.denied <= self.denied
        literals = [word for word in self.allowed if "*" not in word and self.holds(word)]
        patterns = [word for word in self.allowed if "*" in word]
        if not all(other.holds(word) for word in literals):
            return False
        if patterns and not other.denied <= self.denied:
            return False
        return other.allowed is None or all(word in other.allowed or "*" in other.allowed for word in patterns)

    def meet(self, other: Words) -> Words | None:
        """Return the intersection, or None where patterns cross and it cannot be written down."""
        denied = self.denied | other.denied
        if self.allowed is None or other.allowed is None:
            return Words(self.allowed if other.allowed is None else other.allowed, denied)
        literals = {word for word in self.allowed | other.allowed if "*" not in word}
        if any("*" in word for word in self.allowed) and any("*" in word for word in other.allowed):
            if self.allowed == other.allowed:
                return Words(self.allowed, denied)
            return None
        return Words(frozenset(word for word in literals if self.holds(word) and other.holds(word)), denied)

    @property
    def empty(self) -> bool:
        """Whether surely no word is in the set."""
        return self.allowed is not None and not any("*" in word or self.holds(word) for word in self.allowed)


def _any_matches(patterns: Iterable[str], word: str) -> bool:
    for pattern in patterns:
        if pattern == word or (
            "*" in pattern and word != ABSENT and fnmatchcase(word, pattern.replace("[", "[[]").replace("?", "[?]"))
        ):
            return True
    return False


class Span(NamedTuple):
    """An interval of numbers."""

    low: float = float("-inf")
    high: float = float("inf")
    low_open: bool = False
    high_open: bool = False

    def within(self, other: Span) -> bool:
        """Return whether this interval is part of the other."""
        low = self.low > other.low or (self.low == other.low and (self.low_open or not other.low_open))
        high = self.high < other.high or (self.high == other.high and (self.high_open or not other.high_open))
        return low and high

    def meet(self, other: Span) -> Span:
        """Return the intersection."""
        low, low_open = max((self.low, self.low_open), (other.low, other.low_open))
        high, closed = min((self.high, not self.high_open), (other.high, not other.high_open))
        return Span(low, high, low_open, not closed)

    @property
    def empty(self) -> bool:
        """Whether no number is in the interval."""
        return self.low > self.high or (self.low == self.high and (self.low_open or self.high_open))


Domain = Words | Span


class Box(NamedTuple):
    """All of these hold."""

    domains: dict[str, Domain]
    others: frozenset[tuple[bool, Condition]] = frozenset()
    """Conditions kept as they are, with their sign."""

    @property
    def empty(self) -> bool:
        """Whether surely no request is in the box."""
        return any(domain.empty for domain in self.domains.values()) or any(
            (not sign, condition) in self.others for sign, condition in self.others
        )

    def within(self, other: Box) -> bool:
        """Return whether every request in this box is surely in the other."""
        for key, domain in other.domains.items():
            mine = self.domains.get(key)
            if mine is None or not mine.within(domain):  # type: ignore[arg-type]  # equal keys have equal kinds of domain
                return False
        return other.others <= self.others

    def meet(self, other: Box) -> Box:
        """Return the requests in both."""
        domains = dict(self.domains)
        others = self.others | other.others
        for key, domain in other.domains.items():
            mine = domains.get(key)
            both = domain if mine is None else mine.meet(domain)  # type: ignore[arg-type]  # as above
            if both is None:
                others |= {(True, _condition(key, domain))}
            else:
                domains[key] = both
        return Box(domains, others)


def _condition(key: str, domain: Domain) -> Condition:
    """Write patterns down as the condition they came from."""
    words = tuple(sorted(domain.allowed or ())) if isinstance(domain, Words) else ()
    if key.startswith(_HEADER):
        return Header(key.removeprefix(_HEADER), words)
    return OneOf(key, words)  # type: ignore[arg-type]  # keys of Words are text facts or headers


def boxes(condition: Condition) -> list[Box]:
    """Return boxes whose union is the condition; empty ones are left out. Raises TooComplex."""
    return [box for box in _union(condition, True) if not box.empty]


def _union(condition: Condition, sign: bool) -> list[Box]:
    match condition:
        case Always():
            return [Box({})] if sign else []
        case Not(part):
            return _union(part, not sign)
        case AllOf(parts) | AnyOf(parts):
            alternatives = [_union(part, sign) for part in parts]
            if isinstance(condition, AllOf) is sign:
                return reduce(_product, alternatives) if alternatives else [Box({})]
            return _bounded(box for union in alternatives for box in union)
        case _:
            return _leaf(condition, sign)


def _product(left: list[Box], right: list[Box]) -> list[Box]:
    return _bounded(met for one in left for other in right if not (met := one.meet(other)).empty)


def _bounded(found: Iterator[Box]) -> list[Box]:
    kept: list[Box] = []
    for box in found:
        kept.append(box)
        if len(kept) > MAX_BOXES:
            raise TooComplex
    return kept


def _leaf(condition: Condition, sign: bool) -> list[Box]:  # noqa: PLR0911  # one case per kind of leaf
    match condition:
        case OneOf(key, values):
            return [Box({key: _words(values, sign)})]
        case Header(name, values, present):
            if values:
                return [Box({f"{_HEADER}{name}": _words(values, sign)})]
            return [Box({f"{_HEADER}{name}": _words((ABSENT,), present is not sign)})]
        case Flag(key, value):
            return [Box({key: _words(("true",), value is sign)})]
        case Between(key, low, high, low_open, high_open):
            inside = Span(low, high, low_open, high_open)
            outside = [Span(high=low, high_open=not low_open), Span(low=high, low_open=not high_open)]
            return [Box({key: span}) for span in ([inside] if sign else outside) if not span.empty and span != Span()]
        case Share(share):
            return [Box({"share": Span(0, share, False, True) if sign else Span(share, 1, False, True)})]
        case _:
            return [Box({}, frozenset({(sign, condition)}))]


def _words(values: tuple[str, ...], sign: bool) -> Words:
    return Words(frozenset(values)) if sign else Words(None, frozenset(values))
