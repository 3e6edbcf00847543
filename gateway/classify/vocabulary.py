"""What the text model knows: hashes of words and pairs of them, each with a place of its own (built when training).

A perfect hash: each bucket of entries has a shift that was chosen so that no two entries share a place. So a look-up is
the same few operations for whatever is looked up, and what is not known is told by its key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gateway.classify.tokens import Hashes, Places

LEAST_BITS: Final = 8
MOST_BITS: Final = 16
FULL: Final = 0.75
"""Share of the places that may be taken."""
_ENTRIES_A_BUCKET: Final = 2
_SHIFT: Final = np.int64(0x1E3779B97F4A7C15)
_MIX: Final = np.int64(0x5851F42D4C957F2D)
_TRIES: Final = 1 << 16


@dataclass(frozen=True)
class Vocabulary:
    """Known hashes by place."""

    keys: Hashes
    shifts: npt.NDArray[np.uint16]

    def __post_init__(self) -> None:
        object.__setattr__(self, "_spread", self.shifts.astype(np.int64) * _SHIFT)
        object.__setattr__(self, "_downs", (_down(len(self.shifts)), _down(len(self.keys))))

    def find(self, hashes: Hashes) -> tuple[Places, npt.NDArray[np.bool_]]:
        """Return the place where each hash would be, and whether it is there.

        Places in the upper half are counted from the end.
        """
        spread: Hashes = self._spread  # type: ignore[attr-defined]
        to_bucket, to_place = self._downs  # type: ignore[attr-defined]
        places: Places = ((hashes ^ spread[hashes >> to_bucket]) * _MIX) >> to_place
        return places, self.keys[places] == hashes

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the vocabulary as plain arrays, for the artefact."""
        return {"keys": self.keys, "shifts": self.shifts}


def _down(size: int) -> np.int64:
    """Return by how much a hash is shifted to leave a number of as many values as `size`, half of them negative."""
    return np.int64(65 - size.bit_length())


def build_vocabulary(hashes: Sequence[int]) -> Vocabulary:
    """Return a vocabulary of these hashes. Raises ValueError if there are too many."""
    known = np.unique(np.array(hashes, dtype=np.int64))
    bits = max(LEAST_BITS, int(np.ceil(np.log2(max(len(known), 1) / FULL))))
    if bits > MOST_BITS:
        raise ValueError(f"{len(known)} entries; at most {int(FULL * (1 << MOST_BITS))} expected")
    size, buckets = 1 << bits, (1 << bits) // _ENTRIES_A_BUCKET
    keys, shifts = np.zeros(size, dtype=np.int64), np.zeros(buckets, dtype=np.uint16)
    taken = np.zeros(size, dtype=bool)
    bucket = (known >> _down(buckets)) % buckets
    order = np.argsort(bucket, kind="stable")
    counts = np.bincount(bucket, minlength=buckets)
    firsts = np.concatenate(([0], np.cumsum(counts)))
    for number in np.argsort(-counts, kind="stable").tolist():
        members = known[order[firsts[number] : firsts[number + 1]]]
        if not len(members):
            break
        for shift in range(_TRIES):
            places = ((members ^ (np.array([shift]) * _SHIFT)) * _MIX) >> _down(size)
            if not taken[places].any() and len(set(places.tolist())) == len(members):
                break
        else:
            raise ValueError("two entries with one hash")
        taken[places], keys[places], shifts[number] = True, members, shift
    return Vocabulary(keys, shifts)
