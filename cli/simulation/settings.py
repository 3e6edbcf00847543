"""Options of `breakeven simulate` → a plan, and what was set for the printed result."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from cli.simulation.costs import read_costs
from cli.simulation.replay import build_table
from cli.simulation.run import Plan
from cli.simulation.traces import read_traces
from gateway.policy.schema import Rule


def plan_of(options: Mapping[str, Any]) -> tuple[Plan, dict[str, Any]]:
    """Read the files that the options name. Raises InputError and PolicyError."""
    traces = read_traces(options["traces"], options["method"], options["cap"])
    costs = read_costs(options["costs"], options["method"], options["batch"])
    rule = _rule(options["policy"])
    table = build_table(traces, costs, options["draft_lengths"], cap=options["cap"])
    plan = Plan(table, options["method"], options["requests_per_task"], options["seeds"], rule)
    settings = {
        "traces": str(options["traces"]),
        "costs": str(options["costs"]),
        "policy": str(options["policy"]) if options["policy"] else None,
        "method": options["method"],
        "draft_lengths": list(options["draft_lengths"]),
        "batch": options["batch"],
        "requests_per_task": options["requests_per_task"],
        "seeds": options["seeds"],
        "cap": options["cap"],
        "requests": len(traces),
        "tasks": sorted({trace.task for trace in traces}),
    }
    return plan, settings


def _rule(path: Path | None) -> Rule:
    """Return the policy's last rule (the one without a condition), its holdout and guard taken off."""
    if path is None:
        return Rule("simulated", holdout=0.0)
    from gateway.policy import load_policy

    rule = load_policy(path).rules[-1]
    return msgspec.structs.replace(rule, holdout=0.0, p99=None)
