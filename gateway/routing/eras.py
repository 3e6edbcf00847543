"""Applies the change detector to live statistics: what was counted before a change is set aside. By `build_snapshot`.

The store keeps sums per minute; the increments of the newest two minutes since the last snapshot feed the detector.
After a change the counters of the task are gathered anew from those increments, and all that is older weighs one
request, until the store's window holds nothing older any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from gateway.routing.applications import parent_of
from gateway.routing.book import Book, Kind
from gateway.routing.change import Moments, Watch, Watches
from gateway.routing.stats import Layout, Pile, Vector, layout_at
from gateway.types import CellKey

RECENT_MINUTES = 1
"""Minutes before the present one whose counters may still grow; later arrivals are not looked at."""
HALF_LIVES = 8.0
"""Half-lives after which nothing older than a change is left to set aside."""
Scope = tuple[str, str, str]
"""(backend, method, task)."""


class Counted(Protocol):
    """A bucket: the counters of one cell in one minute."""

    @property
    def minute(self) -> int:
        """Unix time // 60."""
        ...

    @property
    def key(self) -> CellKey:
        """The cell."""
        ...

    @property
    def counters(self) -> Mapping[str, int]:
        """Its counters so far."""
        ...


class Row(NamedTuple):
    """A bucket's counters as the layout has them."""

    counters: Mapping[str, int]
    layout: Layout
    vector: Vector
    moments: list[float]
    """The three that the change detector looks at."""


News = tuple[CellKey, Row, Row | None]
"""A cell of one minute, its counters now and as of the last look."""
_MOMENTS = ("sn", "s", "ss")
_NOTHING = [0.0, 0.0, 0.0]


@dataclass(slots=True)
class Fresh:
    """Counters of one scope since its last change."""

    since: float
    """Unix time of the change."""
    piles: dict[Kind, Pile] = field(default_factory=dict)


@dataclass(slots=True)
class Eras:
    """What a gateway remembers to tell new from old; carried from snapshot to snapshot."""

    watches: Watches = field(default_factory=Watches)
    taken: dict[tuple[int, CellKey], Row] = field(default_factory=dict)
    """Counters of the newest minutes as of the last look."""
    fresh: dict[Scope, Fresh] = field(default_factory=dict)
    at: float = 0.0
    known: dict[int, Row] = field(default_factory=dict)
    """Counters of the last look, by identity: most buckets of the past come back as the same object."""

    def rows(self, buckets: Sequence[Counted], layouts: Mapping[tuple[str, str], Layout]) -> list[Row]:
        """Return each bucket's counters as its layout has them."""
        known: dict[int, Row] = {}
        fresh: dict[Layout, list[Mapping[str, int]]] = {}
        before = self.known
        for bucket in buckets:
            key, counters = bucket.key, bucket.counters
            layout = layout_at(layouts, key.backend, key.method, key.k)
            found = before.get(id(counters))
            if found is not None and found.counters is counters and found.layout is layout:
                known[id(counters)] = found
            else:
                fresh.setdefault(layout, []).append(counters)
        for layout, cells in fresh.items():
            table = layout.table(cells)
            moments = table[:, layout.columns(*_MOMENTS)].tolist()
            for counters, vector, three in zip(cells, table, moments, strict=True):
                known[id(counters)] = Row(counters, layout, vector.copy(), three)  # none holds the memory of all
        self.known = known
        return [known[id(bucket.counters)] for bucket in buckets]

    def inherit(self, buckets: Iterable[Counted]) -> None:
        """Learn from a backend's earlier process starts what is usual, where nothing is known of a task yet."""
        usual: dict[Scope, dict[int, Moments]] = {}
        for bucket in buckets:
            key, counters = bucket.key, bucket.counters
            scope = (key.backend, key.method, key.task)
            if key.k > 0 and scope not in self.watches.tasks and not parent_of(key.task):
                n, s, ss = usual.setdefault(scope, {}).get(key.k, (0.0, 0.0, 0.0))
                more = (counters.get("sn", 0), counters.get("s", 0), counters.get("ss", 0))
                usual[scope][key.k] = (n + more[0], s + more[1], ss + more[2])
        for scope, moments in usual.items():
            self.watches.tasks[scope] = Watch()
            self.watches.tasks[scope].note(moments)

    def look(self, buckets: Iterable[Counted], rows: Iterable[Row], now: float, half_life: float) -> None:
        """Feed the detector with what is new since the last look; `rows`: those of `buckets`."""
        newest = int(now // 60) - RECENT_MINUTES
        weight = 0.5 ** (max(0.0, now - self.at) / half_life)
        self.at = now
        self.fresh = {scope: fresh for scope, fresh in self.fresh.items() if now - fresh.since < HALF_LIVES * half_life}
        for fresh in self.fresh.values():
            for pile in fresh.piles.values():
                pile.scale(weight)
        taken: dict[tuple[int, CellKey], Row] = {}
        news: dict[Scope, list[News]] = {}
        for bucket, row in zip(buckets, rows, strict=True):
            key = bucket.key
            if bucket.minute >= newest and key.k > 0:
                place = (bucket.minute, key)
                before = self.taken.get(place)
                taken[place] = row
                if before is not None and before.counters is row.counters:
                    continue
                scope = (key.backend, key.method, parent_of(key.task) or key.task)
                news.setdefault(scope, []).append((key, row, before))
        self.taken = taken
        for scope, increments in news.items():
            self._note(scope, increments, now)

    def apply(self, book: Book) -> None:
        """Put what is new in place of the whole, where a change has been noticed."""
        for (backend, method, task), fresh in self.fresh.items():
            book.forget(backend, method, task)
            for kind, pile in fresh.piles.items():
                for k, vector in pile.by_length.items():
                    book.add_vector(kind, method, k, vector)

    def _note(self, scope: Scope, increments: list[News], now: float) -> None:
        moments: dict[int, Moments] = {}
        for key, row, before in increments:
            if key.task != scope[2]:
                continue  # an application's, the same requests as the task's own
            n, s, ss = row.moments
            n0, s0, ss0 = before.moments if before else _NOTHING
            known = moments.get(key.k, (0.0, 0.0, 0.0))
            moments[key.k] = (known[0] + n - n0, known[1] + s - s0, known[2] + ss - ss0)
        for task in self.watches.note(*scope, moments):
            self.fresh[scope[0], scope[1], task] = Fresh(now)
        fresh = self.fresh.get(scope)
        if fresh is None:
            return
        for key, row, before in increments:
            kind: Kind = (key.backend, key.task, key.temperature, key.context)
            more = row.vector - row.layout.vector(before.counters) if before else row.vector
            fresh.piles.setdefault(kind, Pile(row.layout)).add(key.k, more)
