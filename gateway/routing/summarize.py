"""Snapshot → one row per task, for the page, the report and `/metrics`. Pure; called by `gateway.ops`."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gateway.routing import reasons
from gateway.routing.estimates import PLAIN_KEY, ArmKey, Estimate
from gateway.routing.snapshot import Node, NodeKey, Snapshot
from gateway.types import PLAIN, Arm


class ArmSummary(msgspec.Struct):
    """One arm of one task at one load. Null: not known."""

    arm: str
    path: str
    requests: int
    rounds: int
    a: float | None
    a_low: float | None
    """95 % interval of a (from that of the gain)."""
    a_high: float | None
    z: float | None
    alpha: float | None
    beta: float | None
    alpha_plus_beta: float | None
    """Where costs are not reported: the sum that time per token and a identify."""
    break_even: float | None
    gain: float | None
    gain_low: float | None
    gain_high: float | None
    undrafted: float


class TaskSummary(msgspec.Struct):
    """One kind of request: task, backend and bands, its arms and what is decided at present."""

    task: str
    backend: str
    temperature: str
    context: str
    load: int
    requests: int
    plain_s: float | None
    path: str
    arm: str
    state: str
    """`ok`, `no_data` or `stale`."""
    reason: str
    probe_share: float
    switches: int
    loops: int
    arms: list[ArmSummary]


def summarize(snapshot: Snapshot, tasks: Sequence[str]) -> list[TaskSummary]:
    """Return the rows of all kinds of request seen, in the order of `tasks` (others after them), busiest first."""
    order = {task: i for i, task in enumerate(tasks)}
    rows = [_row(snapshot, key, node) for key, node in snapshot.nodes.items() if node.requests > 0]
    rows.sort(key=lambda row: (order.get(row.task, len(order)), row.task, -row.requests, row.backend, row.load))
    return rows


def _row(snapshot: Snapshot, key: NodeKey, node: Node) -> TaskSummary:
    backend, task, temperature, context, load = key
    method, k = node.state.incumbent
    settled = node.state.settled
    arms = [_arm(backend, estimate) for estimate in node.evidence.arms]
    flight = _leading(node) if backend in snapshot.controlled else None
    if flight is not None:
        method, k = flight
        known = node.flights[method]
        settled = known.requests >= snapshot.tuning.flight_requests
        arms = [_expected(row, estimate, node) for row, estimate in zip(arms, node.evidence.arms, strict=True)]
        if known.closed and max(known.gains.values()) <= 1.0:
            method, k = PLAIN_KEY
    arm = Arm(backend, method, k)
    state = "stale" if snapshot.stale else "ok" if settled else "no_data"
    return TaskSummary(
        task=task,
        backend=backend,
        temperature=temperature,
        context=context,
        load=load,
        requests=round(node.requests),
        plain_s=node.evidence.plain_s,
        path=arm.path,
        arm=str(arm),
        state=state,
        reason=_reason(arm, node, state),
        probe_share=node.probe_share,
        switches=node.state.switches,
        loops=round(_loops(snapshot, key)),
        arms=arms,
    )


def _leading(node: Node) -> ArmKey | None:
    """Return the longest draft of the method with the highest expected gain in flight, None without costs."""
    gains = [(gain, method) for method, flight in node.flights.items() for gain in flight.gains.values()]
    if not gains:
        return None
    method = max(gains)[1]
    return method, max(node.flights[method].gains)


def _expected(row: ArmSummary, estimate: Estimate, node: Node) -> ArmSummary:
    """Fill a shorter draft's a, z and gain in from the acceptance by position, where it never ran on its own."""
    method, k = estimate.key
    flight = node.flights.get(method)
    if not k or flight is None or estimate.requests > 0 or k not in flight.gains or flight.requests <= 0:
        return row
    a = flight.gains[k] * flight.costs[k]
    return msgspec.structs.replace(row, a=round(a, 4), z=round(1 - flight.prior[0], 4), gain=round(flight.gains[k], 4))


def _reason(arm: Arm, node: Node, state: str) -> str:
    prefix = "" if state == "ok" else f"{state}, "
    rivals = [e for e in node.evidence.arms if e.key[1] > 0 and e.requests > 0]
    if arm.k > 0:
        shown = node.evidence.find((arm.method, arm.k))
        return reasons.line(arm, prefix + (reasons.comparison(shown) if shown else "not offered any more"))
    if not rivals:
        return reasons.line(arm, prefix + "nothing known of a speculative arm")
    best = min(rivals, key=lambda estimate: estimate.r)
    return reasons.line(arm, f"{prefix}{best.key[0]}-k{best.key[1]} {reasons.comparison(best)}")


def _arm(backend: str, estimate: Estimate) -> ArmSummary:
    method, k = estimate.key
    arm = Arm(backend, method, k) if k else Arm(backend, PLAIN, 0)
    known = estimate.timed
    low, high = max(1e-6, estimate.r - 1.96 * estimate.se), estimate.r + 1.96 * estimate.se
    error = 1.96 * estimate.se / max(1e-6, estimate.r)
    shown = reasons.numbers_of(estimate)
    return ArmSummary(
        arm=str(arm),
        path=arm.path,
        requests=round(estimate.requests),
        rounds=round(estimate.rounds),
        a=shown["a"],
        a_low=max(1.0, estimate.a * (1 - error)) if known and estimate.a is not None else None,
        a_high=estimate.a * (1 + error) if known and estimate.a is not None else None,
        z=shown["z"],
        alpha=shown["alpha"],
        beta=shown["beta"],
        alpha_plus_beta=shown["alpha_plus_beta"],
        break_even=shown["break_even"],
        gain=1.0 if not k else shown["gain"],
        gain_low=1 / high if known and k else None,
        gain_high=1 / low if known and k else None,
        undrafted=estimate.undrafted,
    )


def _loops(snapshot: Snapshot, key: NodeKey) -> float:
    piles = snapshot.book.piles.get(key[:4], {})
    return float(sum(v[p.layout.index["loops"]] for p in piles.values() for v in p.by_length.values()))
