"""`breakeven simulate --fleet`: all runs of the day and what they say, as JSON or text."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from typing import Any

from cli.simulation.costs import read_costs
from cli.simulation.fleet.figures import figures
from cli.simulation.fleet.run import Fleet
from cli.simulation.fleet.settings import MADE_UP_COSTS, MADE_UP_TASKS, FleetSettings
from cli.simulation.fleet.traffic import Arrival
from cli.simulation.made_up import make_traces
from cli.simulation.replay import Table, build_table
from cli.simulation.traces import read_traces
from gateway.routing import Tuning
from gateway.types import Arm

TRACES_PER_TASK = 60
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Fixed shares of requests that go to the speculative pool, to compare with."""
UNDAMPED = replace(Tuning(), shift_s=0.0, queue_ramp_s=1e-3)
"""The same decision where every gateway acts at once on what it sees: to show what the damping is for."""


def simulate_fleet(options: Mapping[str, Any], *, workers: int | None = None) -> dict[str, Any]:
    """Return settings and figures of both shapes of fleet. Raises InputError."""
    wanted = ("rate", "sample", "day_s", "gateways", "busy")
    chosen = {name: options[name] for name in wanted if options.get(name) is not None}
    settings = FleetSettings(method=options["method"], draft_lengths=tuple(options["draft_lengths"]), **chosen)
    table = table_of(settings, options)
    jobs = [(settings, table, shape) for shape in ("pools", "engine")]
    workers = min(workers or os.cpu_count() or 1, len(jobs))
    began = time.perf_counter()
    if workers <= 1:
        found = [_shape(job) for job in jobs]
    else:
        with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("fork")) as pool:
            found = list(pool.map(_shape, jobs))
    shown = {"traces": str(options["traces"] or "made up"), "costs": str(options["costs"] or "made up")}
    return {
        "settings": asdict(settings) | shown,
        **{shape: result for (_, _, shape), result in zip(jobs, found, strict=True)},
        "took_s": round(time.perf_counter() - began, 1),
    }


def table_of(settings: FleetSettings, options: Mapping[str, Any]) -> Table:
    """Return the requests and their steps: from the files named, else made up. Raises InputError."""
    costs = read_costs(options["costs"], settings.method, 1) if options["costs"] else MADE_UP_COSTS
    if options["traces"]:
        traces = read_traces(options["traces"], settings.method, options["cap"])
    else:
        traces = make_traces(MADE_UP_TASKS, TRACES_PER_TASK, settings.seed, cap=options["cap"])
    return build_table(traces, costs, settings.draft_lengths, cap=options["cap"])


def _shape(job: tuple[FleetSettings, Table, str]) -> dict[str, Any]:
    """Run one shape of fleet: fixed choices, the decision, and the decision undamped."""
    settings, table, shape = job
    began = time.process_time()
    fleet = Fleet(settings, table, Tuning(), engines=shape == "engine")
    events = [part * settings.day_s for part in settings.collapse]
    fixed = {name: figures(fleet.day(choice)) for name, choice in _fixed(fleet, shape).items()}
    routed = figures(fleet.day(), events)
    result = {"servers": fleet.servers, "fixed": fixed, "routed": routed}
    if shape == "pools":
        hasty = Fleet(settings, table, UNDAMPED, engines=False)
        result["undamped"] = figures(hasty.day(), events)
    best = min(fixed, key=lambda name: fixed[name]["mean_end_to_end_s"])
    result["best_fixed"] = best
    result["routed_over_best_fixed"] = routed["mean_end_to_end_s"] / fixed[best]["mean_end_to_end_s"]
    result["cpu_s"] = round(time.process_time() - began, 1)
    return result


def _fixed(fleet: Fleet, shape: str) -> dict[str, Callable[[Arrival], Arm]]:
    arms = [arm for backend in fleet.backends for arm in backend.arms]
    if shape == "engine":
        return {str(arm): _always(arm) for arm in arms}
    return {f"{share:.0%} speculative": _split(arms[0], arms[1], share) for share in SHARES}


def _always(arm: Arm) -> Callable[[Arrival], Arm]:
    return lambda _: arm


def _split(plain: Arm, speculative: Arm, share: float) -> Callable[[Arrival], Arm]:
    return lambda one: speculative if one.draw < share else plain


def render_fleet(result: Mapping[str, Any]) -> str:
    """Return the figures as text for a terminal."""
    settings = result["settings"]
    lines = [
        f"{settings['rate']:,.0f} requests/s at the peak, 1 in {settings['sample']:g} simulated, "
        f"{settings['gateways']} gateways, servers {settings['busy']:.0%} busy, a day in {settings['day_s']:g} s; "
        f"took {result['took_s']:.0f} s",
        f"{'':34} {'end to end':>10} {'wait p99':>9} {'max':>7} {'turns':>6} {'shift/2s':>9}",
    ]
    for shape in ("pools", "engine"):
        part = result[shape]
        rows = [(f"{shape}: {name}", row) for name, row in part["fixed"].items()]
        rows += [(f"{shape}: {name}", part[name]) for name in ("routed", "undamped") if name in part]
        lines += [_line(name, row) for name, row in rows]
        lines.append(f"{shape}: routed over the best fixed choice ({part['best_fixed']}): ")
        lines[-1] += f"{part['routed_over_best_fixed']:.3f}"
    return "\n".join(lines)


def _line(name: str, row: Mapping[str, Any]) -> str:
    wait = row["wait_s"]
    return (
        f"{name:34} {row['mean_end_to_end_s']:9.2f}s {wait['p99']:8.2f}s {wait['max']:6.1f}s "
        f"{row['reversals_beside_events']:6d} {row['largest_shift_in_2_s']:9.2f}"
    )
