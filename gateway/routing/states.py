"""A node's state: which arm is the incumbent, and when it changes. Pure: (state, evidence) → state.

A node begins in `no_data` and takes the arm that may be best. It settles once the best arm stands apart, on plain only
against more evidence than on a speculative arm: that error hides its own evidence. A settled incumbent is replaced when
the one-sided bound of the (paired) difference clears the margin, and stays for a while after each change. Neither rule
holds an arm that is slower than plain beyond doubt: it is left at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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
    looked_at: float = 0.0
    """`seen` when the arms were last compared: looks grow apart, so that chance has fewer of them."""
    era: int = 0
    """The change detector's count of changes when this state began."""
    seen: float = 0.0
    """Requests of this kind so far, whatever arm they took (not discounted)."""


def advance(state: NodeState, evidence: Evidence, seen: float, era: int, tuning: Tuning) -> NodeState:
    """Return the state after `seen` requests in all, given what is now known; a new era begins in `no_data`."""
    state = replace(state, seen=seen) if era == state.era else NodeState(state.incumbent, era=era, seen=seen)
    if not state.settled:
        return _unsettled(state, evidence, tuning)
    return _settled(state, evidence, tuning)


def probe_share(
    state: NodeState, evidence: Evidence, tuning: Tuning, fallen_for: float | None = None
) -> tuple[float, list[ArmKey]]:
    """Return the share of requests that should try another arm, and which arms: those the incumbent does not reveal.

    `fallen_for`: requests since a draft was found to have collapsed, None where none has.
    """
    at = _row(evidence, state.incumbent)
    if at is None:
        return 0.0, []
    if evidence.arms[0].measured:
        return _measured_probes(at, evidence, tuning)
    method, k = state.incumbent
    early = not state.settled and evidence.arms[at].requests < tuning.settle_requests
    hidden = [
        i
        for i, arm in enumerate(evidence.arms)
        if i not in (at, 0) and not (arm.key[0] == method and (early or arm.key[1] <= k))
    ]
    if fallen_for is not None and state.settled and at == 0 and hidden:
        share = tuning.probe_fallen / (1 + fallen_for / 100) ** 0.5
        return max(tuning.probe_min, share), [evidence.arms[min(hidden, key=lambda i: evidence.arms[i].key[1])].key]
    z = tuning.probe_z if state.settled else tuning.settle_plain_z
    open_ = [
        i
        for i in hidden
        if (evidence.gap[i][at] < z * evidence.spread[i][at] if at else _worth_probing(evidence, i, state.seen, tuning))
    ]
    if open_:
        return tuning.probe_max, [evidence.arms[min(open_, key=lambda i: evidence.arms[i].r)].key]
    if not hidden:
        return 0.0, []
    cheapest = min(hidden, key=lambda i: evidence.gap[i][at])
    cost = tuning.probe_cost + tuning.probe_cost_early / (1 + state.seen / 100)
    share = cost / max(1e-9, evidence.gap[cheapest][at])
    return min(tuning.probe_fallen, max(tuning.probe_min, share)), [evidence.arms[cheapest].key]


def _worth_probing(evidence: Evidence, one: int, seen: float, tuning: Tuning) -> bool:
    """Return whether trying a draft instead of plain may bring more than it costs, as many requests ahead as were seen.

    After m probes the difference will have moved by a known standard deviation; what a switch would
    then save on average is that times the normal loss function (H. Raiffa, R. Schlaifer, Applied Statistical Decision
    Theory, 1961, 5.11). It is worth it if some number of probes brings more than m times the difference.
    """
    gap, se = evidence.gap[one][0], evidence.spread[one][0]
    if gap <= 0 or se <= 0:
        return gap <= 0
    behind = (tuning.prior_sd / se) ** 2
    ahead = tuning.probe_ahead + seen
    for probes in (1.0, max(1.0, behind), max(1.0, 4.0 * behind)):
        moved = se * math.sqrt(probes / (behind + probes))
        z = gap / moved
        loss = math.exp(-0.5 * z * z) / math.sqrt(2 * math.pi) - 0.5 * z * math.erfc(z / math.sqrt(2))
        if moved * loss * ahead > probes * gap:
            return True
    return False


def _measured_probes(at: int, evidence: Evidence, tuning: Tuning) -> tuple[float, list[ArmKey]]:
    """Return probes where times are measured: no arm, plain included, tells of another."""
    others = [i for i in range(len(evidence.arms)) if i != at]
    if not others:
        return 0.0, []
    unsure = max(others, key=lambda i: evidence.spread[i][at] / max(1e-3, abs(evidence.gap[i][at])))
    ratio = tuning.pool_probe_z * evidence.spread[unsure][at] / max(1e-3, abs(evidence.gap[unsure][at]))
    share = min(tuning.probe_max, max(tuning.pool_probe_min, 0.25 * ratio**2))
    return share, [evidence.arms[unsure].key]


def _unsettled(state: NodeState, evidence: Evidence, tuning: Tuning) -> NodeState:
    arms = evidence.arms
    if arms[0].se > 0 and arms[0].requests < tuning.plain_first:
        return replace(state, incumbent=PLAIN_KEY)
    lost = clear_losses(evidence, tuning)
    if lost and len(lost) == len(arms) - 1:
        return replace(state, incumbent=PLAIN_KEY, settled=True, switches=0, changed_at=state.seen)
    lead = min(range(len(arms)), key=lambda i: arms[i].r)
    informed = max(arm.requests for arm in arms)
    z, needed = tuning.settle_z, tuning.settle_requests
    if lead == 0:
        z, needed = tuning.settle_plain_z, tuning.settle_plain_requests
    apart = all(evidence.gap[i][lead] > z * evidence.spread[i][lead] for i in range(len(arms)) if i != lead)
    if len(arms) == 1 or (informed >= needed and apart) or informed >= tuning.settle_always:
        return replace(state, incumbent=arms[lead].key, settled=True, switches=0, changed_at=state.seen)
    return replace(state, incumbent=arms[_hopeful(evidence, lost, tuning)].key)


def clear_losses(evidence: Evidence, tuning: Tuning) -> set[int]:
    """Return the rows of the arms that are slower than plain beyond doubt: these need neither dwell nor settling."""
    return {
        i
        for i, arm in enumerate(evidence.arms)
        if i > 0 and arm.timed and round(arm.requests) >= tuning.loss_requests
        if _slower(evidence, i, 0, tuning)
    }


def _beaten(evidence: Evidence, at: int, others: Sequence[int], tuning: Tuning) -> bool:
    """Return whether another arm is faster than the one in force beyond doubt, as for `clear_losses`."""
    if round(evidence.arms[at].requests) < tuning.loss_requests or at == 0:
        return False
    return any(_slower(evidence, at, i, tuning) for i in others if i != at)


def _slower(evidence: Evidence, one: int, other: int, tuning: Tuning) -> bool:
    return evidence.gap[one][other] - tuning.loss_bound_z * evidence.spread[one][other] > tuning.loss_margin


def _hopeful(evidence: Evidence, lost: set[int], tuning: Tuning) -> int:
    """Return the arm to find out more with: plain where no draft may be better, else the draft that may be best."""
    arms = evidence.arms
    open_ = [i for i in range(len(arms)) if i not in lost]
    if min(open_, key=lambda i: arms[i].r - tuning.optimism * arms[i].se) == 0:
        return 0
    drafts = [i for i in open_ if i]
    lead = min(drafts, key=lambda i: arms[i].r)
    may_save = {i: tuning.optimism * evidence.spread[i][lead] - evidence.gap[i][lead] for i in drafts if i != lead}
    return max(drafts, key=lambda i: (may_save.get(i, 0.0), arms[i].key[1]))


def _settled(state: NodeState, evidence: Evidence, tuning: Tuning) -> NodeState:
    at = _row(evidence, state.incumbent)
    if at is None:
        return replace(state, settled=False)
    lost = clear_losses(evidence, tuning)
    left = [i for i, arm in enumerate(evidence.arms) if i not in lost and (i == 0 or arm.requests > 0)]
    if at in lost or _beaten(evidence, at, left, tuning):
        best = evidence.arms[min(left, key=lambda i: evidence.gap[i][at])].key
        return replace(state, incumbent=best, changed_at=state.seen)
    dwell = tuning.dwell if state.switches else tuning.settle_requests
    if state.seen - state.changed_at < dwell or state.seen < tuning.look_growth * state.looked_at:
        return state
    state = replace(state, looked_at=state.seen)
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


def _row(evidence: Evidence, key: ArmKey) -> int | None:
    return next((i for i, arm in enumerate(evidence.arms) if arm.key == key), None)
