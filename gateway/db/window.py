"""What was recorded in a window, grouped as pages and reports need it. Made by `reads`; no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
import numpy as np

from gateway.db import queries
from gateway.db.packed import Ints
from gateway.db.sums import ActivityKey, ActivitySums, ActivityTable
from gateway.histogram import LogHistogram, Metric
from gateway.types import Arm, CellKey


class TaskActivity(msgspec.Struct):
    """One task in one arm, asked for with one API key."""

    task: str
    arm: Arm
    key_id: str
    sums: ActivitySums


class CellActivity(msgspec.Struct):
    """One cell, all API keys together."""

    key: CellKey
    sums: ActivitySums


class Stratum(msgspec.Struct):
    """Requests that were alike before it was drawn which path they take."""

    task: str
    temperature: str
    context: str
    arm: Arm
    key_id: str
    draw: int
    """Share of the holdout that could have held them, in millionths: negative where it did, 0 where none could."""
    sums: ActivitySums


class TaskLatency(msgspec.Struct):
    """The latencies of one task in one arm."""

    task: str
    arm: Arm
    metric: Metric
    histogram: LogHistogram


class Tail(msgspec.Struct):
    """The latencies of one task in one arm at one load band."""

    task: str
    arm: Arm
    load: int
    metric: Metric
    histogram: LogHistogram


class ActivityPoint(msgspec.Struct):
    """One point of a time series: one task in one arm."""

    at: int
    """Unix time of the span's beginning."""
    task: str
    arm: Arm
    sums: dict[str, int]


Group = tuple[str, Arm, int, Any]
"""(task, arm, load band, metric)."""


@dataclass(frozen=True, slots=True)
class Latencies:
    """Merged histograms: a row of buckets for each group."""

    groups: Sequence[Group]
    buckets: Ints

    @classmethod
    def of(cls, parts: Sequence[queries.Entries], cells: Mapping[int, CellKey]) -> Latencies:
        """Merge histograms of cells by group, in the groups' order."""
        place = {number: (key.task, arm_of(key), key.load) for number, key in cells.items()}
        there = {(*place[cell], part.metric) for part in parts for cell in np.unique(part.cells).tolist()}
        groups: dict[Group, int] = {group: at for at, group in enumerate(sorted(there))}
        ids = np.array(sorted(cells), dtype=np.int64)

        numbers = {
            metric: np.array([groups.get((*place[cell], metric), 0) for cell in ids.tolist()], dtype=np.int64)
            for metric in {part.metric for part in parts}
        }

        def group_of(part: queries.Entries) -> Ints:
            return numbers[part.metric][np.searchsorted(ids, part.cells)]

        return cls(list(groups), queries.dense(parts, len(groups), group_of))


class Window:
    """All of it."""

    def __init__(self, sums: ActivityTable, latencies: Latencies) -> None:
        self.sums = sums
        self._latencies = latencies

    @cached_property
    def activity(self) -> list[TaskActivity]:
        """By task, arm and API key."""
        found = self.sums.by(lambda key: (key.cell.task, arm_of(key.cell), key.key_id))
        return [TaskActivity(*group, sums) for group, sums in found.items()]

    @cached_property
    def cells(self) -> list[CellActivity]:
        """By cell: what compares arms at the same load."""
        return [CellActivity(cell, sums) for cell, sums in self.sums.by(lambda key: key.cell).items()]

    @cached_property
    def strata(self) -> list[Stratum]:
        """By stratum of the randomised comparison, arm, API key and draw."""
        return [Stratum(*group, sums) for group, sums in self.sums.by(_stratum).items()]

    @cached_property
    def latency(self) -> list[TaskLatency]:
        """By task, arm and metric."""
        rows: dict[tuple[str, Arm, Any], list[int]] = {}
        for at, (task, arm, _, metric) in enumerate(self._latencies.groups):
            rows.setdefault((task, arm, metric), []).append(at)
        merged = ((group, self._latencies.buckets[of].sum(axis=0)) for group, of in sorted(rows.items()))
        return [TaskLatency(*group, queries.histogram_of(row)) for group, row in merged]

    @cached_property
    def tails(self) -> list[Tail]:
        """By task, arm, load band and metric."""
        pairs = zip(self._latencies.groups, self._latencies.buckets, strict=True)
        return [Tail(*group, queries.histogram_of(row)) for group, row in pairs]


def arm_of(cell: CellKey) -> Arm:
    """Return the arm of a cell."""
    return Arm(cell.backend, cell.method, cell.k)


def _stratum(key: ActivityKey) -> tuple[str, str, str, Arm, str, int]:
    cell = key.cell
    return cell.task, cell.temperature, cell.context, arm_of(cell), key.key_id, key.draw
