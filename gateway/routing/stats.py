"""Counters as vectors: merging, discounting and quadratic forms over them. Pure.

A `Layout` fixes where each counter lies for one set of draft lengths. A `Pile` holds, for one (backend, epoch, method,
task, temperature, context), the discounted counters by the draft length that ran. Loads are not told apart here:
acceptance does not depend on load, and costs are put in on read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from gateway.counted import Shape, counters_of
from gateway.routing.rounds import MAX_POSITION
from gateway.routing.told import Counts, Told

Vector = NDArray[np.float64]

BASE = ("n", "tok", "ct", "rnd", "drf", "acc", "zero", "und", "sn", "s", "ss", "loops", "vn", "t")
FLIGHT = ("bt", "bs", "btt", "bst", "bss", "fn", "fg", "fgg")
STREAKS = tuple(f"{kind}{part}" for kind in ("xt", "xf", "xa", "xb", "xg", "xc", "xd") for part in "01")
TIMES = ("mn", "mtok", "mt", "mtt", "mxt", "mxx", "wn", "wt")
POSITIONS = tuple(f"{kind}{j}" for kind in ("qt", "qs") for j in range(MAX_POSITION))
PER_LENGTH = ("r", "u", "d", "a", "z")
_MOST_SHAPES = 4096
FLOWN = "~"
"""Before the name of what requests under in-flight control say of the arm they ran in, and of it alone."""


class Layout:
    """Positions of all counters for one ascending tuple of draft lengths."""

    def __init__(self, lengths: tuple[int, ...]) -> None:
        self.lengths = lengths
        self.features = ("t", *(f"{kind}{k}" for k in lengths for kind in ("r", "u")))
        """What the second moments are taken of."""
        own = (f"{kind}{k}" for k in lengths for kind in PER_LENGTH)
        singles = (*BASE, *TIMES, *FLIGHT, *STREAKS, *POSITIONS, *own)
        order = {feature: i for i, feature in enumerate(("t", *self._pairs_order()))}
        products = [f"{a}*{b}" for a in order for b in order if order[a] <= order[b]]
        moments = ("vn", "t", *(f"{kind}{k}" for k in lengths for kind in PER_LENGTH), *products)
        flown = tuple(FLOWN + name for name in moments)
        self.index = {name: i for i, name in enumerate((*singles, *products, *flown))}
        self.size = len(self.index)
        self.gram = np.array(
            [[self.index[_product(a, b, order)] for b in self.features] for a in self.features], dtype=np.intp
        )
        """[features, features]: where the product of two features lies."""
        self.moments = np.array([self.index[name] for name in moments], dtype=np.intp)
        """Where the counters lie that a request may also have as flown, and where it has those."""
        self.flown = np.array([self.index[name] for name in flown], dtype=np.intp)
        self._places: dict[Shape, NDArray[np.intp]] = {}
        """Where counters go, by their names in order: those of a cell hardly change. What is not known goes last."""
        told = ("vn", "t", "t*t", *(f"{kind}{k}" for k in lengths for kind in PER_LENGTH))
        self._told = np.array([self.index[name] for name in told], dtype=np.intp)

    def _pairs_order(self) -> list[str]:
        return [f"{kind}{k}" for k in self.lengths for kind in ("r", "u")]

    def columns(self, *names: str) -> NDArray[np.intp]:
        """Return where these counters lie."""
        return np.array([self.index[name] for name in names], dtype=np.intp)

    def vector(self, counters: Mapping[str, int]) -> Vector:
        """Return the counters as a vector; those that the layout does not know are dropped."""
        vector: Vector = self.table([counters])[0]
        return vector

    def table(self, many: Sequence[Mapping[str, int]]) -> Vector:
        """Return the counters of many cells as vectors, [cells, size]."""
        if not many:
            return np.zeros((0, self.size))
        ready = [counters_of(counters) for counters in many]
        width = self.size + 1
        places = [self._placed(counters.shape) for counters in ready]
        rows = np.repeat(width * np.arange(len(many)), [len(each) for each in places])
        found = np.zeros(width * len(many))
        found[np.concatenate(places) + rows] = np.concatenate([counters.amounts for counters in ready])
        return found.reshape(len(many), width)[:, :-1]

    def _placed(self, shape: Shape) -> NDArray[np.intp]:
        places = self._places.get(shape)
        if places is None:
            if len(self._places) >= _MOST_SHAPES:
                self._places.clear()
            places = self._places[shape] = np.array(
                [self.index.get(name, self.size) for name in shape.names], dtype=np.intp
            )
        return places

    def told(self, total: Vector) -> Told:
        """Return what a sum over requests tells of each draft length."""
        n, tokens, squares, *rest = total[self._told].tolist()
        width = len(PER_LENGTH)
        at = {k: Counts(1 + 2 * i, *rest[width * i : width * (i + 1)]) for i, k in enumerate(self.lengths)}
        return Told(n, tokens, squares, at, total[self.gram].tolist())

    def tokens_at(self, total: Vector, k: int) -> float:
        """Return the tokens of the requests that tell of `k`."""
        index = self.index
        return float(total[index[f"r{k}"]] + total[index[f"u{k}"]] + total[index[f"a{k}"]])

    def leave_out(self, total: Vector, k: int) -> None:
        """Take the requests that do not tell of `k` out of a sum."""
        tokens = float(total[self.index["t"]])
        if k in self.lengths and tokens > 0:
            share = min(1.0, self.tokens_at(total, k) / tokens)
            total[[self.index["t"], self.index["vn"], self.index["t*t"]]] *= share


@lru_cache(maxsize=256)
def layout_of(lengths: tuple[int, ...]) -> Layout:
    """Return the (shared) layout of these draft lengths."""
    return Layout(lengths)


def layout_at(layouts: Mapping[tuple[str, str], Layout], backend: str, method: str, k: int) -> Layout:
    """Return the layout of an arm's counters, of `layouts` by (backend, method); plain arms have none of their own."""
    return layouts[backend, method] if k else layout_of(())


class Pile:
    """Counters by the draft length that ran. Mutable while a snapshot is being built."""

    __slots__ = ("_requests", "_revealed", "_told", "by_length", "layout", "memo")

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.by_length: dict[int, Vector] = {}
        self._revealed: dict[int, Vector] = {}
        self._told: dict[tuple[int, bool], Told] = {}
        self._requests: float | None = None
        self.memo: dict[object, object] = {}
        """What others have worked out of it; emptied when it changes."""

    def add(self, ran_at: int, vector: Vector, weight: float = 1.0) -> None:
        """Add counters of requests that ran at `ran_at`."""
        self._forget_sums()
        held = self.by_length.get(ran_at)
        if held is None:
            self.by_length[ran_at] = vector * weight
        elif weight == 1.0:
            held += vector
        else:
            held += vector * weight

    def scale(self, weight: float) -> None:
        """Discount everything."""
        self._forget_sums()
        self.by_length = {ran_at: vector * weight for ran_at, vector in self.by_length.items()}

    def revealing(self, k: int) -> Vector:
        """Return the sum over all requests that say what `k` would have done.

        Those are all that ran at `k` or longer, but of those under in-flight control only the ones that ran at `k`.
        Requests that were recorded while `k` was not on offer are left out: their tokens by the rounds and undrafted
        steps at `k`, which make up all tokens of the others; their number in proportion.
        """
        total = self._revealed.get(k)
        if total is None:
            total = np.zeros(self.layout.size)
            for ran_at, vector in self.by_length.items():
                if ran_at >= k:
                    total += vector
            if k in self.by_length:
                total[self.layout.moments] += self.by_length[k][self.layout.flown]
            self.layout.leave_out(total, k)
            self._revealed[k] = total
        return total

    def paired(self, k: int) -> Vector:
        """Return the sum over the requests that say what `k` and every shorter draft would have done."""
        total = self.revealing(k)
        own = self.by_length.get(k)
        if own is None or not own[self.layout.flown].any():
            return total
        total = total.copy()
        total[self.layout.moments] -= own[self.layout.flown]
        self.layout.leave_out(total, k)
        return total

    def told(self, k: int, *, paired: bool = False) -> Told:
        """Return what the requests of `revealing` tell, `paired`: those of `paired`."""
        found = self._told.get((k, paired))
        if found is None:
            total = self.paired(k) if paired else self.revealing(k)
            found = self.told(k) if paired and total is self.revealing(k) else self.layout.told(total)
            self._told[k, paired] = found
        return found

    @property
    def requests(self) -> float:
        """Requests behind it."""
        if self._requests is None:
            n = self.layout.index["n"]
            self._requests = float(sum(vector[n] for vector in self.by_length.values()))
        return self._requests

    def _forget_sums(self) -> None:
        self._requests = None
        self.memo = {}
        if self._revealed:
            self._revealed, self._told = {}, {}


def merged(layout: Layout, piles: Iterable[tuple[Pile, float]]) -> Pile:
    """Return the weighted sum of piles of one layout."""
    total = Pile(layout)
    for pile, weight in piles:
        for ran_at, vector in pile.by_length.items():
            total.add(ran_at, vector, weight)
    return total


def _product(a: str, b: str, order: Mapping[str, int]) -> str:
    return f"{a}*{b}" if order[a] <= order[b] else f"{b}*{a}"
