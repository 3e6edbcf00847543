"""Sums of activity by cell, API key and draw, and what is grouped out of them. Filled by `queries`; no I/O."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import numpy as np

from gateway.db.models import ACCEPTED_COLUMNS
from gateway.db.packed import Ints
from gateway.db.rollups import SUMS
from gateway.types import CellKey

G = TypeVar("G", bound=Hashable)


class ActivitySums(msgspec.Struct):
    """Σ over the requests of a group; see `ActivityMinute` for each column. Integers, the same on both databases."""

    requests: int = 0
    failed: int = 0
    errors: int = 0
    fallbacks: int = 0
    loops: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    overhead_us: int = 0
    ttft_us: int = 0
    e2e_us: int = 0
    measured: int = 0
    decode_tokens: int = 0
    decode_us: int = 0
    tokens_tokens: int = 0
    tokens_time: int = 0
    time_time: int = 0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    zero_rounds: int = 0
    undrafted: int = 0
    draft_us: int = 0
    verify_us: int = 0
    plain_us: int = 0
    expected_plain_us: int = 0
    expected_round_plain_us: int = 0
    accelerator_tokens: int = 0
    accelerator_us: int = 0
    tokens_accelerator: int = 0
    accelerator_accelerator: int = 0
    accepted_histogram: list[int] = msgspec.field(default_factory=lambda: [0] * ACCEPTED_COLUMNS)
    """`[j]`: rounds with j accepted draft tokens; the last entry counts 16 and more."""

    def add(self, other: ActivitySums) -> None:
        """Add another group's sums."""
        for name in self.__struct_fields__[:-1]:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        pairs = zip(self.accepted_histogram, other.accepted_histogram, strict=True)
        self.accepted_histogram = [mine + its for mine, its in pairs]


@dataclass(frozen=True, slots=True, order=True)
class ActivityKey:
    """Whose sums: `draw` is that of `ActivityMinute`."""

    cell: CellKey
    key_id: str
    draw: int


@dataclass(frozen=True, slots=True)
class ActivityTable:
    """Sums by key; `sums` has a row for each of `SUMS`, a column for each key."""

    keys: Sequence[ActivityKey]
    sums: Ints

    def by(self, group_of: Callable[[ActivityKey], G]) -> dict[G, ActivitySums]:
        """Return the sums by group, in the groups' order."""
        return {group: sums_of(row) for group, row in sum_groups(map(group_of, self.keys), self.sums).items()}


def sum_groups(group_of: Iterable[G], sums: Ints) -> dict[G, list[int]]:
    """Return the sums over the columns of each group, in the groups' order; `group_of` has the group of each column."""
    groups: dict[G, int] = {}
    which = [groups.setdefault(group, len(groups)) for group in group_of]
    summed = np.zeros((len(groups), len(sums)), dtype=np.int64)
    np.add.at(summed, which, sums.T)
    rows = summed.tolist()
    order: Any = sorted(groups.items())
    return {group: rows[at] for group, at in order}


def sums_of(values: Sequence[int]) -> ActivitySums:
    """Return numbers in the order of `SUMS` as sums."""
    plain = len(SUMS) - ACCEPTED_COLUMNS
    named = dict(zip(SUMS[:plain], values[:plain], strict=True))
    return ActivitySums(**named, accepted_histogram=list(values[plain:]))
