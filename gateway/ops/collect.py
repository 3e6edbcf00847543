"""Queries → report: roll-ups for the figures, the live snapshot (or the switch log) for the decisions in force.

Called by `gateway/api/ops.py` with everything, and by `cli/report.py` with the database alone.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gateway.db import CellActivity, Database, Switch, TaskSummary
from gateway.errors import StoreUnavailable
from gateway.ops.costs import costed_by_task
from gateway.ops.figures import add_paths, task_figures
from gateway.ops.model import Health, PathSums, Report, Switched, TaskFigures
from gateway.routing import Snapshot, summarize
from gateway.routing import TaskSummary as LiveTask
from gateway.types import DEFAULT_TASKS, BackendState

_SWITCHES_SHOWN = 50


class OpsReader:
    """Makes reports. Only `database` is needed; the rest shows what a running gateway knows besides."""

    def __init__(
        self,
        database: Database,
        *,
        snapshot: Callable[[], Snapshot] | None = None,
        states: Callable[[], Sequence[BackendState]] = tuple,
        stores: Callable[[], Mapping[str, Any]] = dict,
        policy: Callable[[], Mapping[str, Any]] = dict,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._database = database
        self._snapshot = snapshot
        self._states = states
        self._stores = stores
        self._policy = policy
        self._clock = clock

    async def report(self, since_s: float) -> Report:
        """Return the report of the latest `since_s` seconds; without a database, what the live statistics know."""
        now = self._clock()
        live = self._live()
        try:
            summary = await self._database.task_summary(now - since_s, metrics=("ttft", "tpot"))
            cells = await self._database.cell_activity(now - since_s)
            switches = await self._database.switches(now - since_s, limit=_SWITCHES_SHOWN)
            logged = await self._database.switches(0.0, limit=1000) if self._snapshot is None else []
        except StoreUnavailable as error:
            tasks, totals, switches = [_live_figures(row) for row in live.values()], TaskFigures("all"), []
            source = f"From live statistics only: {error}"
            health = [Health("database", False, str(error))]
        else:
            tasks, totals = figures_by_task(summary, cells)
            for task in tasks:
                _decide(task, live, logged)
            source = f"Figures from the roll-ups in {_name(self._database.url)}"
            health = [Health("database", True)]
        return Report(
            generated_at=now,
            since_s=since_s,
            tasks=tasks,
            totals=totals,
            health=_merged(health, self._health()),
            model=", ".join(sorted({state.model for state in self._states() if state.model})),
            policy=str(self._policy().get("hash", "")),
            switches=[Switched(s.at.timestamp(), s.task, s.band, s.old_arm, s.new_arm, s.reason) for s in switches],
            source=source,
        )

    def _live(self) -> dict[str, LiveTask]:
        """Return the busiest kind of request of each task."""
        found: dict[str, LiveTask] = {}
        if self._snapshot is not None:
            for row in summarize(self._snapshot(), DEFAULT_TASKS):
                if row.task not in found or row.requests > found[row.task].requests:
                    found[row.task] = row
        return found

    def _health(self) -> list[Health]:
        """Return the stores and backends as the running gateway sees them."""
        parts = [_store_health(name, said) for name, said in self._stores().items()]
        for state in self._states():
            at_work = f"{state.running} running, {state.waiting} waiting; {', '.join(arm.label for arm in state.arms)}"
            parts.append(Health(f"backend {state.name}", state.healthy, at_work if state.healthy else state.detail))
        return parts


def figures_by_task(summary: TaskSummary, cells: Sequence[CellActivity]) -> tuple[list[TaskFigures], TaskFigures]:
    """Return the figures of each task in the default order (others after them), and of all together."""
    paths: dict[tuple[str, str], PathSums] = defaultdict(PathSums)
    for part in summary.activity:
        paths[part.task, part.arm.path].sums.add(part.sums)
    for latency in summary.latency:
        into = paths[latency.task, latency.arm.path]
        (into.tpot if latency.metric == "tpot" else into.ttft).merge(latency.histogram)
    for task, costed in costed_by_task(cells).items():
        paths[task, "speculative"].costed = costed
    order = {task: at for at, task in enumerate(DEFAULT_TASKS)}
    names = sorted({task for task, _path in paths}, key=lambda task: (order.get(task, len(order)), task))
    tasks = [task_figures(name, paths[name, "plain"], paths[name, "speculative"]) for name in names]
    plain = add_paths(sums for (_task, path), sums in paths.items() if path == "plain")
    spec = add_paths(sums for (_task, path), sums in paths.items() if path == "speculative")
    return tasks, task_figures("all", plain, spec)


def _decide(task: TaskFigures, live: Mapping[str, LiveTask], switches: Sequence[Switch]) -> None:
    """Fill in the decision in force: from the live statistics, or from the switch log where no gateway runs here."""
    if row := live.get(task.task):
        task.path, task.arm, task.state, task.reason = row.path, row.arm, row.state, row.reason
        return
    for switch in switches:
        if switch.task == task.task:
            task.arm, task.state, task.reason = switch.new_arm, "logged", switch.reason
            task.path = "plain" if switch.new_arm.endswith("/plain") else "speculative"
            return


def _live_figures(row: LiveTask) -> TaskFigures:
    """Return what the live statistics know of a task while the database is away."""
    figures = TaskFigures(
        row.task, requests=row.requests, path=row.path, arm=row.arm, state=row.state, reason=row.reason
    )
    known = [arm for arm in row.arms if arm.path == "speculative" and arm.a is not None]
    if known:
        shown = next((arm for arm in known if arm.arm == row.arm), max(known, key=lambda arm: arm.requests))
        figures.rounds, figures.a, figures.z = shown.rounds, shown.a, shown.z
        figures.alpha, figures.beta, figures.break_even = shown.alpha, shown.beta, shown.break_even
        figures.gain, figures.gain_low, figures.gain_high = shown.gain, shown.gain_low, shown.gain_high
    return figures


def _name(url: str) -> str:
    """Name a database without saying where on this machine it lies."""
    if url.startswith("sqlite"):
        return f"the SQLite file {url.rpartition('/')[2]}"
    return f"PostgreSQL at {url.rpartition('@')[2]}"


def _store_health(name: str, said: Any) -> Health:  # noqa: ANN401 (each store says what it likes)
    """Read a store's state, a mapping with `ok` and details, or a word."""
    if not isinstance(said, Mapping):
        return Health(name, str(said) == "ok", str(said))
    if "submitted" in said:  # the recorder
        lost = said.get("dropped", 0)
        kept = f"{said['submitted']} records, {said.get('queued', 0)} in the queue"
        return Health(name, not lost, kept + (f", {lost} LOST" if lost else ""))
    age = f"answered {said['age_s']:.0f} s ago" if isinstance(said.get("age_s"), int | float) else ""
    return Health(name, bool(said.get("ok", False)), str(said.get("detail") or age))


def _merged(own: Sequence[Health], told: Sequence[Health]) -> list[Health]:
    """Return both lists; a store that both name is well only where both say so, with the gateway's details."""
    by_name = {part.name: part for part in told}
    for part in own:
        if part.name not in by_name:
            by_name[part.name] = part
        elif not part.ok:
            by_name[part.name] = Health(part.name, False, part.detail)
    return list(by_name.values())
