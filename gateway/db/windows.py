"""Which rows answer for a window of time, each request once. Called by `queries`; no I/O but for the clock."""

from __future__ import annotations

import time
from collections.abc import Sequence

from sqlalchemy import ColumnElement, and_, false, or_

from gateway.db.models import DAY, HOUR, MINUTE, PIECE, WEEK, ActivityPacked, LatencyPacked
from gateway.db.packed import Ints

_LONGER = {MINUTE: HOUR, HOUR: DAY, DAY: WEEK}
_TOLD_KEPT = 47 * 60
"""Minutes for which told minutes are there for certain."""
Range = tuple[int, int, int]
"""(span, first minute, last minute)."""


def ranges_of(first: int, last: int, finest: int = WEEK) -> list[Range]:
    """Return what of the packed rows takes every told request of minutes `first` … `last` once.

    Whole weeks come from week rows, whole days at their edges from day rows, then hours and told minutes: each span
    tells all that the finer ones do. What no hour tells yet comes from fresh minutes, which have a table of their own.
    No span above `finest` is used, and for a minute nothing but minutes. An edge older than minutes are kept has the
    hours that begin in it.
    """
    begin, end = first, last + 1
    found: list[Range] = []
    for span in (MINUTE, HOUR, DAY, WEEK):
        longer = _LONGER.get(span, 0)
        inner = (-(-begin // longer) * longer, end // longer * longer) if longer and span < finest else (end, end)
        if span == MINUTE and finest > MINUTE and begin < int(time.time() // 60) - _TOLD_KEPT:
            inner = (begin, inner[1])
        if inner[0] >= inner[1]:
            found += [(span, begin, end - 1)]
            break
        found += [(span, begin, inner[0] - 1), (span, inner[1], end - 1)]
        begin, end = inner
    return [(span, a, b) for span, a, b in found if a <= b]


def within(table: type[ActivityPacked | LatencyPacked], ranges: Sequence[Range]) -> ColumnElement[bool]:
    """Return the condition for the rows that hold these ranges; a piece of minutes is there if one of them is.

    One flat OR: each part is found by the key; an OR within would read whole spans.
    """
    parts = [
        and_(table.span == span, table.minute.between(a - a % PIECE if span == MINUTE else a, b))
        for span, a, b in ranges
    ]
    return or_(*parts) if parts else false()


def wanted(span: int, start: int, offsets: Ints, ranges: Sequence[Range]) -> Ints | None:
    """Return which entries of a row lie within the ranges; None where all of them do."""
    if span != MINUTE:
        return None
    minutes, inside = start + offsets, offsets < 0
    for of, first, last in ranges:
        if of == MINUTE:
            inside |= (minutes >= first) & (minutes <= last)
    return None if inside.all() else inside.nonzero()[0]
