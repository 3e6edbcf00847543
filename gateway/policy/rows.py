"""A rule's condition as rows: alternatives, each a list of simple demands that must all hold. For `index.py`; pure."""

from __future__ import annotations

from typing import NamedTuple

from gateway.policy.conditions import AllOf, Always, AnyOf, Condition, Not

_MOST = 16
"""Alternatives of one rule beyond which its condition is tested as a whole."""


class Demand(NamedTuple):
    """One simple condition that must hold, or must not."""

    leaf: Condition
    negated: bool


Row = tuple[Demand, ...]


class TooMany(Exception):  # no error: the condition is tested another way
    """A condition has too many alternatives to be written out."""


def rows_of(condition: Condition) -> list[Row]:
    """Return the alternatives; none where the condition never holds. Raises TooMany."""
    return _rows(condition, negated=False)


def _rows(condition: Condition, *, negated: bool) -> list[Row]:
    match condition:
        case Always():
            return [] if negated else [()]
        case Not(part):
            return _rows(part, negated=not negated)
        case AllOf(parts) | AnyOf(parts):
            every = isinstance(condition, AllOf) != negated
            return _product(parts, negated) if every else _union(parts, negated)
    return [(Demand(condition, negated),)]


def _union(parts: tuple[Condition, ...], negated: bool) -> list[Row]:
    found: list[Row] = []
    for part in parts:
        found += _rows(part, negated=negated)
        _check(found)
    return found


def _product(parts: tuple[Condition, ...], negated: bool) -> list[Row]:
    found: list[Row] = [()]
    for part in parts:
        more = _rows(part, negated=negated)
        found = [(*row, *other) for row in found for other in more]
        _check(found)
    return found


def _check(rows: list[Row]) -> None:
    if len(rows) > _MOST:
        raise TooMany
