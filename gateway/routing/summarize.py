"""Snapshot → one row per task, for the page, the report and `/metrics`. Pure; called by `gateway.ops`."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gateway.routing import reasons
from gateway.routing.alarm import alarming
from gateway.routing.applications import parent_of
from gateway.routing.estimates import PLAIN_KEY, ArmKey, Estimate
from gateway.routing.flight import Flight
from gateway.routing.shown import Shown, shown_for
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
    """The 95 % interval of the gain, on the scale of a."""
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
    zero_accept_alarm: bool = False
    """Whether its zero-accept rate is above the threshold of the rule that last asked."""


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
    """`ok`, `no_data`, `probe` (it goes out under control in flight, though its task loses) or `stale`."""
    reason: str
    probe_share: float
    switches: int
    loops: int
    arms: list[ArmSummary]
    zero_accept_alarm: bool = False
    """Whether the arm in force has a zero-accept rate above the threshold of the rule that last asked."""


def summarize(snapshot: Snapshot, tasks: Sequence[str]) -> list[TaskSummary]:
    """Return the rows of all kinds of request seen, in the order of `tasks` (others after them), busiest first."""
    order = {task: i for i, task in enumerate(tasks)}
    rows = [
        _row(view, key, node) for view, key, node in snapshot.in_force() if node.requests > 0 and not parent_of(key[1])
    ]
    rows.sort(key=lambda row: (order.get(row.task, len(order)), row.task, -row.requests, row.backend, row.load))
    return rows


def _row(snapshot: Snapshot, key: NodeKey, node: Node) -> TaskSummary:
    backend, task, temperature, context, load = key
    method, k = node.state.incumbent
    arms = [_arm(backend, estimate, node) for estimate in node.evidence.arms]
    leading = _leading(node) if backend in snapshot.controlled else None
    flight: Flight | None = None
    if leading is not None:
        method, k = leading
        flight = node.flights[method]
        arms = [_expected(row, estimate, node) for row, estimate in zip(arms, node.evidence.arms, strict=True)]
        if not flight.pays(flight.gains):
            method, k = PLAIN_KEY
    arm = Arm(backend, method, k)
    shown = shown_for((method, k), node.evidence, flight)
    tried = flight.tried if flight else max((e.requests for e in node.evidence.arms if e.key[1]), default=0.0)
    state, why = _standing(shown, round(tried), snapshot, flight, arm)
    text = shown.text if shown else "nothing known of a speculative arm"
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
        reason=reasons.line(arm, why + text),
        probe_share=node.probe_share,
        switches=node.state.switches,
        loops=round(_loops(snapshot, key)),
        arms=arms,
        zero_accept_alarm=any(row.zero_accept_alarm for row in arms if row.arm == str(arm)),
    )


def _standing(shown: Shown | None, tried: int, snapshot: Snapshot, flight: Flight | None, arm: Arm) -> tuple[str, str]:
    """Return state and opening words, as `choose` has them (there the rule's own minimum of requests holds)."""
    if snapshot.stale:
        return "stale", "stale, "
    if shown is None or tried < snapshot.tuning.settle_requests:
        return "no_data", "no_data, "
    if shown.agrees:
        return "ok", ""
    if flight is not None and arm.k > 0 and flight.requests > 0:
        return "probe", "probe in flight, "
    return "no_data", "no_data, too close to call, "


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


def _arm(backend: str, estimate: Estimate, node: Node) -> ArmSummary:
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
        zero_accept_alarm=bool(k) and bool(alarming(estimate, node.alarm_at)),
    )


def _loops(snapshot: Snapshot, key: NodeKey) -> float:
    piles = snapshot.book.piles.get(key[:4], {})
    return float(sum(v[p.layout.index["loops"]] for p in piles.values() for v in p.by_length.values()))
