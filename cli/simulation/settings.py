"""Options of `breakeven simulate` → a plan, and what was set for the printed result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from cli.simulation.costs import read_costs
from cli.simulation.replay import build_table
from cli.simulation.router import request_stub
from cli.simulation.run import Plan
from cli.simulation.traces import Trace, read_traces
from gateway.policy.schema import Rule
from gateway.types import Classification


def plan_of(options: Mapping[str, Any]) -> tuple[Plan, dict[str, Any]]:
    """Read the files that the options name. Raises InputError and PolicyError."""
    traces = read_traces(options["traces"], options["method"], options["cap"])
    costs = read_costs(options["costs"], options["method"], options["batch"])
    rules = _rules(options["policy"], traces, options["batch"])
    table = build_table(traces, costs, options["draft_lengths"], cap=options["cap"])
    plan = Plan(table, options["method"], options["requests_per_task"], options["seeds"], rules)
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


def _rules(path: Path | None, traces: Sequence[Trace], batch: int) -> Rule | list[Rule]:
    """Return the rule that the policy has for each request, holdout and guard taken off."""
    if path is None:
        return Rule("simulated", holdout=0.0)
    from gateway.policy import facts_of, load_policy, match

    policy = load_policy(path)
    request = request_stub()
    rules = []
    for trace in traces:
        known = Classification(trace.seen_task, 1.0, "declared")
        facts = facts_of(request, known, load=batch, prompt_tokens=trace.prompt_tokens, conversation=trace.id)
        rules.append(msgspec.structs.replace(match(policy, facts), holdout=0.0, p99=None))
    return rules
