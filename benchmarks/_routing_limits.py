"""Which figures of the decision a row of results misses, in words. Used by `routing_figures` and by the tests.

A row holds means over seeds, times relative to plain alone: `always_on` by draft length, `best_static`, `task_oracle`,
`request_oracle`, `naive_ewma`, `routed`, `routed_in_flight`, `worst_regret` and, on made-up traffic, `greedy_bayes`.
"""

from __future__ import annotations

from typing import Any

WIDE = 0.03
"""Oracles that differ by more than this share leave room for control in flight."""


def missed(row: dict[str, Any], *, long: bool = False, in_flight: bool = True) -> list[str]:
    """Return what misses its limit; `long` rows stand for 12,000 requests, the others for 1,200."""
    limits = {
        "best_static": (row["routed"], (1.005 if long else 1.01) * row["best_static"]),
        "task_oracle": (row["routed"], (1.005 if long else 1.015) * row["task_oracle"]),
        "naive_ewma": (row["routed"], 1.01 * row["naive_ewma"]),
    }
    if len(row["always_on"]) > 1 and row["naive_ewma"] > (1 + WIDE) * row["task_oracle"]:
        limits["3 % better than naive_ewma"] = (row["routed"], 0.97 * row["naive_ewma"])
    if not long:
        limits["worst seed"] = (1 + row["worst_regret"], 1.03)
    if in_flight:
        limits |= _in_flight(row)
    return [f"{name}: {value:.4f} > {limit:.4f}" for name, (value, limit) in limits.items() if value > limit]


def _in_flight(row: dict[str, Any]) -> dict[str, tuple[float, float]]:
    flown, oracle = row["routed_in_flight"], row["task_oracle"]
    limits = {"in flight, task_oracle": (flown, 1.005 * oracle)}
    if oracle <= (1 + WIDE) * row["request_oracle"]:
        return limits
    if "greedy_bayes" in row:
        if row["greedy_bayes"] < 0.995 * oracle:  # else there is nothing to close
            limits["in flight, 0.75 of greedy Bayes"] = (flown, oracle - 0.75 * (oracle - row["greedy_bayes"]))
    else:
        limits["in flight, request_oracle"] = (flown, 1.01 * row["request_oracle"])
    return limits
