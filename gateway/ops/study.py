"""A window → what a report says beyond the page. Pure; called by `collect` where a study is asked for."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.db import Query, Window
from gateway.ops.advice import advise
from gateway.ops.findings import spikes, tails, waste
from gateway.ops.holdout import Gains
from gateway.ops.model import Report, Switched
from gateway.ops.study_model import ESTIMATOR, ESTIMATOR_NOTE, Change, Gain, Study

TAIL_METRICS = ("itl", "tpot")
"""The latencies whose p99 reports compare."""


def study_of(
    report: Report, window: Window, gained: Gains, changes: Sequence[Change], queries: Sequence[Query]
) -> Study:
    """Return the study of a window whose page is `report`."""
    rows = tails(part for part in window.tails if part.metric in TAIL_METRICS)
    return Study(
        ESTIMATOR,
        ESTIMATOR_NOTE,
        gained.total,
        gained.tasks,
        gained.applications,
        losses_of([*gained.tasks, *gained.applications]),
        waste(window.cells),
        rows,
        spikes(window.cells, window.tails),
        list(changes),
        advise(report.tasks, gained.tasks, rows, window.cells),
        list(queries),
    )


def losses_of(gains: Sequence[Gain]) -> list[Gain]:
    """Return those that certainly lose time, largest loss first."""
    lost = [gain for gain in gains if gain.time.high is not None and gain.time.high < 1]
    return sorted(lost, key=lambda gain: gain.time.saved_s or 0.0)


def changes_of(switches: Sequence[Switched]) -> list[Change]:
    """Return how often each task's decision changed; `switches` are newest first."""
    found: dict[str, Change] = {}
    for switch in switches:
        change = found.setdefault(switch.task, Change(switch.task, 0, switch.new_arm, switch.reason))
        change.count += 1
    return sorted(found.values(), key=lambda change: (-change.count, change.task))
