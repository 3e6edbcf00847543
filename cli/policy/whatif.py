"""Replays one workload under a policy, through the live decision (`cli.simulation.router`), rule by rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from cli.policy.replay import Workload
from cli.simulation.costs import CostModel
from cli.simulation.replay import Table, build_table
from cli.simulation.router import Router
from cli.simulation.run import draw_sequence
from gateway.policy import Policy, Rule, enforced
from gateway.routing import Tuning
from gateway.types import PLAIN, Arm

DEFAULT_LENGTHS = (2, 4, 8)
"""Draft lengths of a backend with `arms: auto`, which cannot be asked."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What both policies are replayed with."""

    workload: Workload
    costs: CostModel
    method: str
    lengths: tuple[int, ...]
    cap: int
    requests_per_task: int
    seeds: int


def lengths_of(policy: Policy, method: str) -> set[int]:
    """Return the draft lengths that a policy's backends offer for a method."""
    found: set[int] = set()
    for backend in policy.backends:
        if backend.arms == "auto":
            found.update(DEFAULT_LENGTHS)
        else:
            found.update(arm.k for arm in backend.arms if arm.method == method and arm.k)
    return found


def effective(policy: Policy, rule: Rule, method: str, lengths: Sequence[int]) -> Rule:
    """Return a rule as it applies to the one simulated backend: its arms written out, guard and holdout off."""
    offered = lengths_of(policy, method)
    names = [backend.name for backend in policy.backends]
    allowed = [k for k in lengths if k in offered and any(rule.allows(Arm(name, method, k)) for name in names)]
    labels = [f"{method}-k{k}" for k in allowed]
    if any(rule.allows(Arm(name)) for name in names) or not labels:
        labels.append(PLAIN)
    return msgspec.structs.replace(rule, path="auto", arms=tuple(labels), draft_lengths=None, holdout=0.0, p99=None)


def replay(policy: Policy, setup: Setup) -> dict[str, Any]:
    """Return what the workload costs under a policy: figures over seeds, and by rule."""
    table = build_table(setup.workload.traces, setup.costs, setup.lengths, cap=setup.cap)
    chosen = [enforced(policy, facts) for facts in setup.workload.facts]
    by_name = {rule.name: effective(policy, rule, setup.method, setup.lengths) for rule in policy.rules}
    rules = [by_name[rule.name] for rule in chosen]
    in_flight = any(backend.kind == "engine" for backend in policy.backends)
    rows = [_one(table, setup, rules, seed, in_flight=in_flight) for seed in range(setup.seeds)]
    return {
        "policy": policy.hash,
        "name": policy.name,
        "relative_time": [row["relative_time"] for row in rows],
        "p99_s_per_token": [row["p99"] for row in rows],
        "speculative_share": [row["speculative"] for row in rows],
        "rules": _by_rule(rows),
    }


def _one(table: Table, setup: Setup, rules: Sequence[Rule], seed: int, *, in_flight: bool) -> dict[str, Any]:
    """Replay one sequence; the same one for every policy, so that seeds can be compared in pairs."""
    sequence = draw_sequence(table, setup.requests_per_task, np.random.default_rng([seed, 0]))
    router = Router(table, setup.method, rules, Tuning(), in_flight=in_flight)
    run = router.run(sequence.tolist(), np.random.default_rng([seed, 2]))
    seconds, plain = np.array(run.seconds), table.plain[sequence]
    speculative = np.array(run.arms) > 0
    return {
        "relative_time": float(seconds.sum() / plain.sum()),
        "p99": float(np.quantile(seconds / table.tokens[sequence], 0.99, method="inverted_cdf")),
        "speculative": float(speculative.mean()),
        "rules": _sums([rules[index].name for index in sequence], seconds, plain, speculative),
    }


def _sums(
    names: Sequence[str], seconds: NDArray[np.float64], plain: NDArray[np.float64], speculative: NDArray[np.bool_]
) -> dict[str, NDArray[np.float64]]:
    """Return (requests, seconds, plain seconds, speculative requests) by rule."""
    sums: dict[str, NDArray[np.float64]] = {}
    for name, row in zip(names, np.stack([np.ones_like(seconds), seconds, plain, speculative], axis=1), strict=True):
        sums[name] = sums.get(name, np.zeros(4)) + row
    return sums


def _by_rule(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    total: dict[str, NDArray[np.float64]] = {}
    for row in rows:
        for name, sums in row["rules"].items():
            total[name] = total.get(name, np.zeros(4)) + sums
    return {
        name: {
            "requests": sums[0] / len(rows),
            "relative_time": float(sums[1] / sums[2]),
            "speculative_share": float(sums[3] / sums[0]),
        }
        for name, sums in total.items()
    }


def compare(old: dict[str, Any], new: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Return the change from old to new, paired by seed: mean, sd over seeds and the largest."""
    changes = {}
    for key in ("relative_time", "p99_s_per_token", "speculative_share"):
        before, after = np.array(old[key]), np.array(new[key])
        change = after - before if key == "speculative_share" else after / before - 1.0
        sd = float(change.std(ddof=1)) if len(change) > 1 else 0.0
        changes[key] = {"mean": float(change.mean()), "sd": sd, "max": float(change.max())}
    return changes
