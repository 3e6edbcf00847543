"""Counters of one cell as Redis told them: the names shared with other cells, the values in one array. Pure.

Read like a dict. A refresh takes a thousand of them apart: no number of these becomes an object on the way.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Mapping
from functools import lru_cache
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

_MOST_SHAPES = 4096


class Shape:
    """The names of a cell's counters, in order; equal ones are one object (`shape_of`)."""

    __slots__ = ("at", "names")

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self.at = {name: i for i, name in enumerate(names)}


@lru_cache(maxsize=_MOST_SHAPES)
def shape_of(names: tuple[str, ...]) -> Shape:
    """Return the (shared) shape of these names."""
    return Shape(names)


@lru_cache(maxsize=_MOST_SHAPES)
def _shape_told(line: bytes) -> Shape:
    return shape_of(tuple(line.decode("utf-8", "replace").split()))


class Counters(Mapping[str, int]):
    """Counters by name. They stay as they are."""

    __slots__ = ("amounts", "shape")

    def __init__(self, shape: Shape, amounts: NDArray[np.int64]) -> None:
        """`amounts`: [names]."""
        self.shape = shape
        self.amounts = amounts

    def __getitem__(self, name: str) -> int:
        return int(self.amounts[self.shape.at[name]])

    def __iter__(self) -> Iterator[str]:
        return iter(self.shape.names)

    def __len__(self) -> int:
        return len(self.shape.names)

    def __contains__(self, name: object) -> bool:
        return name in self.shape.at

    def __repr__(self) -> str:
        return f"Counters({dict(self.items())})"

    def items(self) -> ItemsView[str, int]:
        """Return names and values, all made in one go."""
        return dict(zip(self.shape.names, self.amounts.tolist(), strict=True)).items()


_NO_AMOUNTS = np.zeros(0, np.int64)
NONE = Counters(shape_of(()), _NO_AMOUNTS)
"""No counters at all."""


def counters_of(counters: Mapping[str, int]) -> Counters:
    """Return counters in this form. Raises OverflowError where a value leaves 64 bits."""
    if isinstance(counters, Counters):
        return counters
    return Counters(shape_of(tuple(counters)), np.fromiter(counters.values(), np.int64, len(counters)))


def taken_apart(values: bytes, shapes: bytes, names: list[bytes]) -> list[Counters]:
    """Return the counters of many cells from what `read.lua` replies.

    `values`: those of all cells; `shapes`: of each cell, which of `names` it has; both with commas between. `names`:
    the names of a shape, with spaces between. Raises ValueError where that does not fit together.
    """
    known = [_shape_told(line) for line in names]
    try:
        int(values.rpartition(b",")[2] or b"0")  # what follows the last integer would go unnoticed
        amounts = np.fromstring(values, np.int64, sep=",") if values else _NO_AMOUNTS
        kinds = [known[int(kind)] for kind in shapes.split(b",")] if shapes else []
    except IndexError as error:
        raise ValueError("no such shape") from error
    ends = [*accumulate(len(kind.names) for kind in kinds)]
    if len(amounts) != (ends[-1] if ends else 0):
        raise ValueError("as many values as names are needed")
    return [
        Counters(kind, amounts[first:last].copy())  # none holds the memory of all
        for kind, first, last in zip(kinds, [0, *ends], ends, strict=False)
    ]
