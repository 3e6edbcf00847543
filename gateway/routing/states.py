"""A node's state: which arm is the incumbent, and when it changes. Pure: (state, evidence) → state.

A node begins in `no_data` and takes the arm that may be best. It settles once the best arm stands apart, on plain only
against more evidence than on a speculative arm: that error hides its own evidence. A settled incumbent is replaced when
the one-sided bound of the (paired) difference clears the margin, and stays for a while after each change.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from gateway.routing.estimates import PLAIN_KEY, ArmKey, Evidence
from gateway.routing.tuning import Tuning


@dataclass(frozen=True, slots=True)
class NodeState:
    """What a node remembers between refreshes."""

    incumbent: ArmKey = PLAIN_KEY
    settled: bool = False
    switches: int = 0
    """Changes of the incumbent since the node last settled anew."""
    changed_at: float = 0.0
    """`seen` at the last change."""
    seen: float = 0.0
    """Requests of this kind so far, whatever arm they took (not discounted)."""


def advance(state: NodeState, evidence: Evidence, seen: float, tuning: Tuning) -> NodeState:
    """Return the state after `seen` requests in all, given what is now known of the arms."""
    state = replace(state, seen=seen)
    if not state.settled:
        return _unsettled(state, evidence, tuning)
    return _settled(state, evidence, tuning)


def probe_share(state: NodeState, evidence: Evidence, tuning: Tuning) -> tuple[float, list[ArmKey]]:
    """Return the share of requests that should try another arm, and which arms: those the incumbent does not reveal."""
    at = _row(evidence, state.incumbent)
    if not state.settled or at is None:
        return 0.0, []
    method, k = state.incumbent
    hidden = [
        i for i, arm in enumerate(evidence.arms) if i not in (at, 0) and not (arm.key[0] == method and arm.key[1] <= k)
    ]
    open_ = [i for i in hidden if evidence.gap[i][at] - tuning.probe_z * evidence.spread[i][at] < 0]
    if open_:
        return tuning.probe_max, [evidence.arms[i].key for i in open_]
    return tuning.probe_min, [evidence.arms[i].key for i in hidden]


def _unsettled(state: NodeState, evidence: Evidence, tuning: Tuning) -> NodeState:
    order = sorted(range(len(evidence.arms)), key=lambda i: _hopeful(evidence, i, tuning))
    best = order[0]
    state = replace(state, incumbent=evidence.arms[best].key)
    if len(order) == 1:
        return replace(state, settled=True, changed_at=state.seen)
    by_mean = sorted(range(len(evidence.arms)), key=lambda i: evidence.arms[i].r)
    lead, second = by_mean[0], by_mean[1]
    to_plain = lead == 0
    informed = max(arm.requests for arm in evidence.arms)
    z = tuning.settle_plain_z if to_plain else tuning.optimism
    needed = tuning.settle_plain_requests if to_plain else tuning.settle_requests
    apart = evidence.gap[second][lead] > z * evidence.spread[second][lead]
    if (informed >= needed and apart) or informed >= tuning.settle_always:
        return replace(state, incumbent=evidence.arms[lead].key, settled=True, switches=0, changed_at=state.seen)
    return state


def _settled(state: NodeState, evidence: Evidence, tuning: Tuning) -> NodeState:
    at = _row(evidence, state.incumbent)
    if at is None:
        return replace(state, settled=False)
    if state.seen - state.changed_at < tuning.dwell:
        return state
    z = tuning.switch_z + state.switches
    better = [
        (evidence.gap[at][i], i)
        for i in range(len(evidence.arms))
        if i != at
        and evidence.arms[i].requests + (i == 0) > 0
        and evidence.gap[at][i] - z * evidence.spread[at][i] > tuning.margin * evidence.arms[at].r
    ]
    if not better:
        return state
    _, i = max(better)
    return replace(state, incumbent=evidence.arms[i].key, switches=state.switches + 1, changed_at=state.seen)


def _hopeful(evidence: Evidence, i: int, tuning: Tuning) -> tuple[float, float]:
    arm = evidence.arms[i]
    low = arm.r - tuning.optimism * arm.se
    return (low if math.isfinite(low) else math.inf, -float(arm.key[1]))


def _row(evidence: Evidence, key: ArmKey) -> int | None:
    return next((i for i, arm in enumerate(evidence.arms) if arm.key == key), None)
