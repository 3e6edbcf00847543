"""Queries → report: roll-ups for the figures, the live snapshot (or the switch log) for the decisions in force.

Called by `gateway/api/ops.py` with everything, and by `cli/report.py` with the database alone.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from gateway.bands import load_band
from gateway.db import CellActivity, Database, Switch, TaskActivity, TaskLatency
from gateway.errors import StoreUnavailable
from gateway.ops.arms import arm_figures
from gateway.ops.costs import costed_by_task
from gateway.ops.figures import add_paths, application_figures, path_figures, task_figures
from gateway.ops.holdout import Gains, gains
from gateway.ops.model import Health, PathFigures, PathSums, Report, Switched, TaskFigures
from gateway.ops.series import SUMMED, Series, series_of, step_minutes
from gateway.ops.study import changes_of, study_of
from gateway.routing import Snapshot, summarize
from gateway.routing import TaskSummary as LiveTask
from gateway.types import DEFAULT_TASKS, BackendState

_SWITCHES_SHOWN = 50
_SWITCHES_READ = 5000


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
        patience_s: float = 10.0,
    ) -> None:
        self._database = database
        self._snapshot = snapshot
        self._states = states
        self._stores = stores
        self._policy = policy
        self._clock = clock
        self._patience_s = patience_s

    async def report(self, since_s: float, *, study: bool = False) -> Report:
        """Return the report of the latest `since_s` seconds; without a database, what the live statistics know.

        `study` adds the randomised comparison and all that only reports say.
        """
        now = self._clock()
        report = Report(now, since_s, [], TaskFigures("all"), policy=str(self._policy().get("hash", "")))
        report.model = ", ".join(sorted({state.model for state in self._states() if state.model}))
        live = self._live()
        try:
            async with asyncio.timeout(self._patience_s):
                await self._read(report, live, study)
            health = [Health("database", True)]
        except (StoreUnavailable, TimeoutError) as error:
            why = str(error) or f"the database did not answer within {self._patience_s:.0f} s"
            report.tasks, report.totals = [_live_figures(row) for row in live.values()], TaskFigures("all")
            report.source = f"From live statistics only: {why}"
            health = [Health("database", False, why)]
        report.health = _merged(health, self._health())
        return report

    async def series(self, since_s: float) -> Series:
        """Return the charts of the latest `since_s` seconds. Raises StoreUnavailable."""
        now = self._clock()
        points = await self._database.task_series(now - since_s, step_minutes(since_s), SUMMED)
        return series_of(points, since_s, now)

    async def _read(self, report: Report, live: Mapping[str, LiveTask], study: bool) -> None:
        """Fill in everything that comes from the database. Raises StoreUnavailable."""
        database, since = self._database, report.generated_at - report.since_s
        window = await database.window(since, report.generated_at)
        cells = window.cells
        paths = sums_by_path(window.activity, window.latency, cells)
        report.arms = arm_figures(cells)
        report.tasks, report.totals, report.paths = figures_by_task(paths)
        logged = await database.switches(0.0, limit=1000) if self._snapshot is None else []
        for task in report.tasks:
            _decide(task, live, logged)
        switches = await database.switches(since, limit=_SWITCHES_READ if study else _SWITCHES_SHOWN)
        changed = [Switched(s.at.timestamp(), s.task, s.band, s.old_arm, s.new_arm, s.reason) for s in switches]
        report.switches = changed[:_SWITCHES_SHOWN]
        names = {key.key_id: key.name for key in await database.list_keys()}
        gained = gains(window.strata, names)
        _compare(report, gained)
        report.applications = application_figures(window.activity, names)
        report.audits = await database.audit_sums(since, report.generated_at)
        report.parted = await database.audit_findings(since) if any(one.parted for one in report.audits) else []
        if study:
            queries = database.statements(since, report.generated_at)
            report.study = study_of(report, window, gained, changes_of(changed), queries)
        report.source = f"Figures from the roll-ups in {_name(database.url)}"

    def _live(self) -> dict[str, LiveTask]:
        """Return the busiest kind of request of each task, at the load that the next request would meet."""
        if self._snapshot is None:
            return {}
        loads = {state.name: load_band(state.running + 1) for state in self._states()}
        found: dict[str, LiveTask] = {}
        for row in summarize(self._snapshot(), DEFAULT_TASKS):
            best = found.get(row.task)
            if best is None or _weight(row, loads) > _weight(best, loads):
                found[row.task] = row
        return found

    def _health(self) -> list[Health]:
        """Return policy, stores and backends as the running gateway sees them."""
        policy = self._policy()
        parts = [_policy_health(policy)] if policy else []
        parts += [_store_health(name, said) for name, said in self._stores().items()]
        for state in self._states():
            at_work = f"{state.running} running, {state.waiting} waiting; {', '.join(arm.label for arm in state.arms)}"
            parts.append(Health(f"backend {state.name}", state.healthy, at_work if state.healthy else state.detail))
        return parts


def sums_by_path(
    activity: Iterable[TaskActivity], latencies: Iterable[TaskLatency], cells: Sequence[CellActivity]
) -> dict[tuple[str, str], PathSums]:
    """Return the sums and latencies of each task and path."""
    paths: dict[tuple[str, str], PathSums] = defaultdict(PathSums)
    for part in activity:
        paths[part.task, part.arm.path].sums.add(part.sums)
    for latency in latencies:
        of = paths[latency.task, latency.arm.path]
        histograms = {"tpot": of.tpot, "ttft": of.ttft, "itl": of.itl}
        if latency.metric in histograms:
            histograms[latency.metric].merge(latency.histogram)
    for task, costed in costed_by_task(cells).items():
        paths[task, "speculative"].costed = costed
    return paths


def figures_by_task(
    paths: Mapping[tuple[str, str], PathSums],
) -> tuple[list[TaskFigures], TaskFigures, list[PathFigures]]:
    """Return the figures of each task in the default order (others after them), of all together, and of each path."""
    order = {task: at for at, task in enumerate(DEFAULT_TASKS)}
    names = sorted({task for task, _path in paths}, key=lambda task: (order.get(task, len(order)), task))
    nothing = PathSums()
    tasks = [
        task_figures(name, paths.get((name, "plain"), nothing), paths.get((name, "speculative"), nothing))
        for name in names
    ]
    plain = add_paths(sums for (_task, path), sums in paths.items() if path == "plain")
    spec = add_paths(sums for (_task, path), sums in paths.items() if path == "speculative")
    return tasks, task_figures("all", plain, spec), [path_figures("plain", plain), path_figures("speculative", spec)]


def _weight(row: LiveTask, loads: Mapping[str, int]) -> tuple[int, int]:
    """Order rows of one task: by requests, then by how near their load band is to the present one."""
    now = loads.get(row.backend, 1)
    return row.requests, -abs(row.load.bit_length() - now.bit_length())


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


def _compare(report: Report, gained: Gains) -> None:
    """Fill in the gain against the randomised holdout: the very figures of the reports."""
    known = {gain.name: gain for gain in gained.tasks}
    for task in [*report.tasks, report.totals]:
        gain = gained.total if task is report.totals else known.get(task.task)
        if gain is not None:
            task.held, saving = gain.holdout, gain.time
            task.holdout_gain, task.holdout_low, task.holdout_high = saving.gain, saving.low, saving.high


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


def _policy_health(said: Mapping[str, Any]) -> Health:
    """Tell where the policy in force is from, and what is wrong with a newer one that cannot be used."""
    refused = said.get("rejected")
    if refused:
        more = f" (and {len(refused['findings']) - 1} more)" if len(refused["findings"]) > 1 else ""
        why = f"{refused['source']} refused: {refused['findings'][0]}{more}; {said.get('hash')} stays in force"
        return Health("policy", False, why)
    return Health("policy", True, f"{said.get('name', '')} {said.get('hash', '')}, from {said.get('origin', 'file')}")


def _store_health(name: str, said: Any) -> Health:  # noqa: ANN401 (each store says what it likes)
    """Read a store's state, a mapping with `ok` and details, or a word."""
    if not isinstance(said, Mapping):
        return Health(name, str(said) == "ok", str(said))
    if "submitted" in said:  # the recorder
        lost = said.get("dropped", 0)
        kept = f"{said['submitted']} records, {said.get('queued', 0)} in the queue"
        return Health(name, not lost, kept + (f", {lost} LOST" if lost else ""))
    if "audited" in said:  # losslessness audits
        detail = f"{said['audited']} answers compared, {said.get('queued', 0)} in the queue, {said['skipped']} skipped"
        return Health(name, bool(said.get("ok")), str(said.get("detail") or detail))
    if "kept" in said:  # prompts that rules keep
        lost = f", {said['dropped']} LOST" if said.get("dropped") else ""
        detail = f"{said['kept']} kept, {said.get('queued', 0)} in the queue{lost}"
        return Health(name, bool(said.get("ok")) and not lost, str(said.get("detail") or detail))
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
