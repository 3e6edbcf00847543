"""Discounted counters in the order in which the decision needs them. Filled by `build_snapshot` and the simulator."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gateway.routing.applications import parent_of
from gateway.routing.stats import TIMES, Pile, Vector, layout_at, layout_of, merged
from gateway.types import Arm, CellKey

ALL = "*"
"""Stands for every task."""
_FEW = 8.0
"""Requests behind a mean that arms are compared by."""
Kind = tuple[str, str, str, str]
"""(backend, task or application of a task, temperature band, context band)."""


@dataclass(slots=True)
class Measured:
    """Measured times of one arm at one load: sums over requests, in seconds and tokens (discounted)."""

    requests: float = 0.0
    tokens: float = 0.0
    seconds: float = 0.0
    squares: float = 0.0
    """Σ seconds²."""
    cross: float = 0.0
    """Σ seconds · tokens."""
    tokens_squared: float = 0.0

    def add(self, amounts: Sequence[float], unit: float) -> None:
        """Add the measured counters of `observe` in the order of `TIMES`, discounted (`unit` seconds each)."""
        n, tokens, seconds, squares, cross, tokens_squared = amounts[:6]
        self.requests += n
        self.tokens += tokens
        self.seconds += seconds * unit
        self.squares += squares * unit * unit
        self.cross += cross * unit
        self.tokens_squared += tokens_squared

    def scale(self, weight: float) -> None:
        """Discount everything."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) * weight)


class Book:
    """All counters of the current epoch of each backend."""

    def __init__(self, lengths: Mapping[tuple[str, str], Iterable[int]]) -> None:
        """`lengths`: the draft lengths of each (backend, method) whose views are kept."""
        self.layouts = {where: layout_of(tuple(sorted(set(ks)))) for where, ks in lengths.items()}
        """By (backend, method)."""
        self.piles: dict[Kind, dict[str, Pile]] = defaultdict(dict)
        self.totals: dict[str, dict[str, Pile]] = defaultdict(dict)
        """Over all tasks, by backend and method."""
        self.measured: dict[CellKey, Measured] = {}
        self.requests: dict[Kind, float] = defaultdict(float)
        """Requests of a kind, whatever arm they took."""
        self.loads: dict[Kind, set[int]] = defaultdict(set)
        self.signatures: dict[Kind, tuple[int, float]] = {}
        """Buckets and requests (not discounted) behind a kind: it has changed where these have."""
        self._pooled: dict[Kind, dict[str, Pile]] = {}
        self.memo: dict[object, object] = {}
        """What others have worked out of the measured times and of `requests`; emptied when anything is added."""
        self._sizes: dict[str, tuple[float, float]] = {}
        self._starts: dict[tuple[str, str, int, str], tuple[float, float]] = {}

    def add(self, key: CellKey, counters: Mapping[str, int], weight: float, unit: float) -> None:
        """Add one bucket of one cell."""
        layout = layout_at(self.layouts, key.backend, key.method, key.k)
        self.add_all([(key, weight, layout.vector(counters))], unit)

    def add_all(self, cells: Iterable[tuple[CellKey, float, Vector]], unit: float) -> None:
        """Add many buckets (key, weight, counters as the arm's layout has them): those of one arm in one go."""
        if self.memo:
            self.memo = {}
        arms: dict[tuple[str, str, int], tuple[list[CellKey], list[float], list[Vector]]] = {}
        for key, weight, vector in cells:
            keys, weights, vectors = arms.setdefault((key.backend, key.method, key.k), ([], [], []))
            keys.append(key)
            weights.append(weight)
            vectors.append(vector)
        for (backend, method, k), (keys, weights, vectors) in arms.items():
            table = np.array(vectors)
            discounted = table * np.array(weights)[:, None]
            layout = layout_at(self.layouts, backend, method, k)
            kinds = self._count(keys, table[:, layout.index["n"]].tolist(), weights)
            self._measure(keys, discounted[:, layout.columns(*TIMES)].tolist(), unit)
            if k:
                for kind, vector in _by_kind(kinds, discounted):
                    self.add_vector(kind, method, k, vector)

    def _count(self, keys: Sequence[CellKey], requests: Sequence[float], weights: Sequence[float]) -> list[Kind]:
        """Add what is not a matter of acceptance: requests and loads. Returns the kind of each cell."""
        kinds: list[Kind] = []
        for key, n, weight in zip(keys, requests, weights, strict=True):
            kind: Kind = (key.backend, key.task, key.temperature, key.context)
            kinds.append(kind)
            self.requests[kind] += weight * n
            self.loads[kind].add(key.load)
            buckets, before = self.signatures.get(kind, (0, 0.0))
            self.signatures[kind] = (buckets + 1, before + n)
        return kinds

    def _measure(self, keys: Sequence[CellKey], times: Sequence[Sequence[float]], unit: float) -> None:
        """Add measured times of tasks, those of their applications being the same."""
        for key, amounts in zip(keys, times, strict=True):
            if (amounts[0] or amounts[6]) and not parent_of(key.task):
                self.measured.setdefault(key, Measured()).add(amounts, unit)
                self._add_sums(key, amounts, unit)

    def measured_by_arm(self) -> dict[tuple[str, str, int], list[tuple[CellKey, Measured]]]:
        """Return the measured cells by (backend, method, k)."""
        if "by arm" not in self.memo:
            cells: dict[tuple[str, str, int], list[tuple[CellKey, Measured]]] = {}
            for key, cell in self.measured.items():
                cells.setdefault((key.backend, key.method, key.k), []).append((key, cell))
            self.memo["by arm"] = cells
        return self.memo["by arm"]  # type: ignore[return-value]  # each entry of the memo has its own type

    def requests_anywhere(self, kind: Kind) -> float:
        """Return the requests of a kind over all backends."""
        where = ("requests", *kind[1:])
        if where not in self.memo:
            self.memo[where] = sum(n for other, n in self.requests.items() if other[1:] == kind[1:])
        return self.memo[where]  # type: ignore[return-value]

    def _add_sums(self, key: CellKey, amounts: Sequence[float], unit: float) -> None:
        measured, tokens, started, waited = amounts[0], amounts[1], amounts[6], amounts[7]
        for task in (key.task, ALL):
            n, all_tokens = self._sizes.get(task, (0.0, 0.0))
            self._sizes[task] = (n + measured, all_tokens + tokens)
        arm = (key.backend, key.method, key.k)
        for context in (key.context, ALL):
            n, seconds = self._starts.get((*arm, context), (0.0, 0.0))
            self._starts[*arm, context] = (n + started, seconds + waited * unit)

    def output_tokens(self, task: str) -> float | None:
        """Return the mean output of a task (`ALL`: of all), None where none has been seen."""
        n, tokens = self._sizes.get(task, (0.0, 0.0))
        return tokens / n if n > 0 and tokens > 0 else None

    def start_s(self, arm: Arm, context: str) -> float | None:
        """Return the mean time to the first token of requests that found no queue, None after too few of them."""
        for band in (context, ALL):
            n, seconds = self._starts.get((arm.backend, arm.method, arm.k, band), (0.0, 0.0))
            if n >= _FEW:
                return seconds / n
        return None

    def add_vector(self, kind: Kind, method: str, k: int, vector: Vector, weight: float = 1.0) -> None:
        """Add counters that are a vector already."""
        layout = self.layouts[kind[0], method]
        self._pooled.clear()
        if weight != 1.0:
            vector = vector * weight
        for place in (self.piles[kind],) if parent_of(kind[1]) else (self.piles[kind], self.totals[kind[0]]):
            if method not in place:
                place[method] = Pile(layout)
            place[method].add(k, vector)

    def pile(self, kind: Kind, lend: float) -> dict[str, Pile]:
        """Return the kind's own counters with those of the task's other bands, which weigh `lend` requests at most."""
        found = self._pooled.get(kind)
        if found is None:
            found = self._pooled[kind] = self._pool(kind, lend)
        return found

    def _pool(self, kind: Kind, lend: float) -> dict[str, Pile]:
        backend, task, _, _ = kind
        own = self.piles.get(kind, {})
        siblings = [
            self.piles[k]
            for k in self.piles
            if k != kind and k[0] == backend and (k[1] == task or (task == ALL and not parent_of(k[1])))
        ]
        result = {}
        for method in {*own, *(m for piles in siblings for m in piles)}:
            others = [piles[method] for piles in siblings if method in piles]
            lent = sum(pile.requests for pile in others)
            weight = min(1.0, lend / lent) if lent > 0 else 0.0
            mine = [(own[method], 1.0)] if method in own else []
            parts = mine + [(pile, weight) for pile in others]
            result[method] = (
                parts[0][0] if len(parts) == 1 and parts[0][1] == 1.0 else merged(parts[0][0].layout, parts)
            )
        return result

    def scale(self, weight: float) -> None:
        """Discount everything: what `build_snapshot` does by the age of each bucket."""
        self._pooled.clear()
        self.memo = {}
        for places in (self.piles, self.totals):
            for piles in places.values():
                for pile in piles.values():
                    pile.scale(weight)
        for measured in self.measured.values():
            measured.scale(weight)
        for kind in self.requests:
            self.requests[kind] *= weight
        self._sizes = {task: (n * weight, tokens * weight) for task, (n, tokens) in self._sizes.items()}
        self._starts = {arm: (n * weight, seconds * weight) for arm, (n, seconds) in self._starts.items()}

    def forget(self, backend: str, method: str, task: str) -> None:
        """Let all that is known of a method's acceptance on a task weigh one request: it has changed."""
        self._pooled.clear()
        for kind, piles in self.piles.items():
            mine = kind[0] == backend and task in (kind[1], parent_of(kind[1]))
            pile = piles.get(method) if mine else None
            if pile is not None:
                pile.scale(1.0 / max(1.0, pile.requests))
        if method in self.totals[backend]:
            layout = self.totals[backend][method].layout
            parts = [
                (piles[method], 1.0)
                for kind, piles in self.piles.items()
                if kind[0] == backend and method in piles and not parent_of(kind[1])
            ]
            self.totals[backend][method] = merged(layout, parts)


def _by_kind(kinds: Sequence[Kind], table: Vector) -> Iterator[tuple[Kind, Vector]]:
    """Return the sum of the rows of each kind."""
    places: dict[Kind, int] = {}
    of = np.array([places.setdefault(kind, len(places)) for kind in kinds])
    order = np.argsort(of, kind="stable")
    firsts = np.searchsorted(of[order], np.arange(len(places)))
    return zip(places, np.add.reduceat(table[order], firsts), strict=True)
