"""Evidence → what a report says beyond the page. Pure; called by `collect` where a study is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gateway.db import CellActivity, Evidence
from gateway.ops.advice import advise
from gateway.ops.findings import spikes, tails, waste
from gateway.ops.holdout import gains
from gateway.ops.model import Report, Switched
from gateway.ops.study_model import ESTIMATOR, ESTIMATOR_NOTE, Change, Gain, Study


def study_of(
    report: Report,
    evidence: Evidence,
    cells: Sequence[CellActivity],
    names: Mapping[str, str],
    changes: Sequence[Change],
) -> Study:
    """Return the study of a window whose page is `report`; `names` are those of API keys."""
    total, by_task, by_key = gains(evidence.strata, names)
    rows = tails(evidence.tails)
    return Study(
        ESTIMATOR,
        ESTIMATOR_NOTE,
        total,
        by_task,
        by_key,
        losses_of([*by_task, *by_key]),
        waste(cells),
        rows,
        spikes(cells, evidence.tails),
        list(changes),
        advise(report.tasks, by_task, rows, cells),
        evidence.queries,
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
