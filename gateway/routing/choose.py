"""Which of the servable arms a request takes: forced, holdout, incumbent or probe. Pure; second half of `decide`."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

from gateway.policy.schema import Rule
from gateway.routing.estimates import PLAIN_KEY
from gateway.routing.options import Ask, Option
from gateway.routing.placing import placed
from gateway.routing.shown import Shown, shown_for

Controlled = dict[str, Option]
"""By backend: the option that goes out under in-flight control."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The option taken, and why."""

    option: Option
    state: str
    text: str
    preferred: Option
    """What the statistics prefer; the option itself where nothing stands in between."""
    propensity: float = 1.0
    shown: Shown | None = None
    """The numbers behind it."""


def choose(ask: Ask, options: list[Option], *, forced: bool) -> Choice:
    """Return the choice among `options` (at least one)."""
    controlled = candidates(options)
    best = preferred(options, ask.rule, controlled)
    moved = ""
    if not forced and len(ask.backends) > 1 and not ask.snapshot.stale:
        best, moved = placed(ask, best, _leaders(best, options, controlled))
    shown = _shown(best, options, None if forced else controlled.get(best.arm.backend))
    if forced:
        return Choice(best, "forced", f"forced by the request; {_explain(shown)}", best, shown=shown)
    if len(options) == 1:
        text = f"policy, the only arm that rule {ask.rule.name} allows; {_explain(shown)}"
        return Choice(best, "policy", text, best, shown=shown)
    if ask.snapshot.stale:
        taken = _fallback(options, ask.rule, best)
        return Choice(taken, "stale", f"stale statistics, fallback {ask.rule.fallback_path}", best)
    return (
        _holdout(ask, best, options)
        or _probe(ask, best, options, controlled)
        or (Choice(best, "ok", f"{moved}, {_explain(shown)}", best, shown=shown) if moved else None)
        or _estimated(ask, best, options, controlled.get(best.arm.backend), shown)
    )


def _leaders(best: Option, options: list[Option], controlled: Controlled) -> dict[str, Option]:
    """Return what each backend would take this request with."""
    leaders = {best.arm.backend: best}
    for name in {option.arm.backend: None for option in options if option.arm.backend != best.arm.backend}:
        mine = [option for option in options if option.arm.backend == name]
        leaders[name] = in_flight(controlled.get(name), mine) or _incumbent(mine)
    return leaders


def _estimated(ask: Ask, best: Option, options: list[Option], control: Option | None, shown: Shown | None) -> Choice:
    """Return the arm that the estimates (or, without any, the initial rule) prefer."""
    if best.seconds is None or all(option.seconds is None for option in options if option.arm.k):
        taken = _fallback(options, ask.rule, best)
        return Choice(taken, "no_data", f"no_data, costs unknown, fallback {ask.rule.fallback_path}", best)
    seen = _seen(options, control)
    if shown is None or seen < ask.rule.break_even.min_requests:
        few = f"{seen} of {ask.rule.break_even.min_requests} requests seen"
        return Choice(best, "no_data", f"no_data, {few}, {_explain(shown)}", best, shown=shown)
    if shown.agrees:
        return Choice(best, "ok", shown.text, best, shown=shown)
    state, why = _apart(ask, best, control)
    return Choice(best, state, f"{why}, {shown.text}", best, shown=shown)


def _seen(options: list[Option], control: Option | None) -> int:
    """Return the requests behind the comparison: those of the speculative arms, rounds or none."""
    if control is not None:
        return round(control.node.flights[control.arm.method].tried)
    return round(max((option.estimate.requests for option in options if option.arm.k), default=0.0))


def _apart(ask: Ask, best: Option, control: Option | None) -> tuple[str, str]:
    """Return state and words where the numbers do not speak for the arm that is taken all the same."""
    if control is not None and best.arm.k > 0:
        if best.node.flights[best.arm.method].requests <= 0:
            return "no_data", "no_data, nothing was drafted"
        return "probe", "probe in flight"
    if best.arm.k == 0 and best.node.state.incumbent != PLAIN_KEY:
        return "policy", f"policy, margin {ask.rule.break_even.margin:.1%} not reached"
    return "no_data", "no_data, too close to call"


def preferred(options: list[Option], rule: Rule, controlled: Controlled) -> Option:
    """Return the preferred option: per backend its incumbent where allowed, over backends the lowest time.

    A pool without a plain arm of its own has been compared with the plain pools; it stands back where plain won.
    """
    leaders: list[Option] = []
    anywhere_plain = any(option.arm.k == 0 for option in options)
    for name in {option.arm.backend: None for option in options}:
        mine = [option for option in options if option.arm.backend == name]
        pool = anywhere_plain and all(option.arm.k > 0 for option in mine)
        if pool and (mine[0].node.state.incumbent == PLAIN_KEY or mine[0].seconds is None):
            continue
        leaders.append(in_flight(controlled.get(name), mine) or _with_margin(_incumbent(mine), mine, rule))
    speculative = [leader for leader in leaders if leader.arm.k > 0 and leader.seconds is not None]
    if len(leaders) > 1 and speculative:
        return min(speculative, key=lambda option: option.seconds or 0.0)
    plain = [leader for leader in leaders if leader.arm.k == 0]
    return min(plain or leaders, key=lambda option: option.seconds or 0.0)


def candidates(options: list[Option]) -> Controlled:
    """Return, per backend that controls requests in flight, the option that would go out as the limit."""
    found: Controlled = {}
    for name in {option.arm.backend: None for option in options if option.state.adaptive}:
        candidate = _candidate([option for option in options if option.arm.backend == name])
        if candidate is not None:
            found[name] = candidate
    return found


def in_flight(best: Option | None, mine: list[Option]) -> Option | None:
    """Return what one backend's requests take where it controls them in flight; None where it does not.

    The longest draft on offer goes out as the limit and the engine chooses below it; a task whose prior says plain goes
    plain once its probes in flight did not pay, and at once where not even its best requests would gain.
    """
    if best is None:
        return None
    flight = best.node.flights[best.arm.method]
    plain = next((option for option in mine if option.arm.k == 0), None)
    pays = flight.pays(option.arm.k for option in mine if option.arm.method == best.arm.method)
    return best if plain is None or pays else plain


def _candidate(mine: list[Option]) -> Option | None:
    """Return the longest draft of the method with the highest expected gain; None without costs or without control."""
    best: tuple[float, Option] | None = None
    for option in mine:
        flight = option.node.flights.get(option.arm.method)
        gain = flight.gains.get(option.arm.k) if flight and option.arm.k else None
        if gain is not None and (best is None or gain > best[0]):
            best = (gain, option)
    if best is None:
        return None
    method = best[1].arm.method
    return max((option for option in mine if option.arm.method == method), key=lambda o: o.arm.k)


def _incumbent(mine: list[Option]) -> Option:
    incumbent = mine[0].node.state.incumbent
    leader = next((o for o in mine if o.key == incumbent), None)
    if leader is not None:
        return leader
    return min(mine, key=lambda o: (o.seconds is None and o.arm.k > 0, o.estimate.r, o.arm.k))


def _with_margin(leader: Option, mine: list[Option], rule: Rule) -> Option:
    """Return plain instead where a settled speculative arm gains less than the rule asks for."""
    if leader.arm.k == 0 or not leader.node.state.settled:
        return leader
    if leader.estimate.r <= 1.0 - rule.break_even.margin or rule.break_even.margin <= 0.005:
        return leader
    return next((option for option in mine if option.arm.k == 0), leader)


def _fallback(options: list[Option], rule: Rule, best: Option) -> Option:
    if best.arm.path == rule.fallback_path:
        return best
    return next((option for option in options if option.arm.path == rule.fallback_path), best)


def _holdout(ask: Ask, best: Option, options: list[Option]) -> Choice | None:
    """Return the fixed arm of the holdout that this conversation (else request) falls into, if any."""
    rule = ask.rule
    if rule.holdout <= 0:
        return None
    share = _hash_draw(ask.conversation) if ask.conversation else ask.draw
    if share >= rule.holdout:
        return None
    plain = [option for option in options if option.arm.k == 0]
    speculative = [option for option in options if option.arm.k > 0]
    if not plain or not speculative:
        return None
    held = plain[0] if share < rule.holdout / 2 else min(speculative, key=_fixed_order)
    text = f"holdout ({rule.holdout:.1%} of conversations stay on a fixed path)"
    return Choice(held, "holdout", text, best, rule.holdout / 2)


def _fixed_order(option: Option) -> tuple[int, str]:
    """Order of the policy's fixed speculative arm: the draft length nearest 4, then the name."""
    return abs(option.arm.k - 4), str(option.arm)


def _hash_draw(text: str) -> float:
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=7, person=b"holdout").digest()
    return int.from_bytes(digest, "big") / 2**56


def _probe(ask: Ask, best: Option, options: list[Option], controlled: Controlled) -> Choice | None:
    """Return another arm where this request is one of the share that tries it."""
    share, hidden = _probes(ask, best, options, controlled)
    share = min(share, ask.rule.probe)
    position = (ask.draw - ask.rule.holdout) / max(1e-9, 1.0 - ask.rule.holdout)
    if not hidden or not 0.0 <= position < share:
        return None
    at = min(len(hidden) - 1, int(position / share * len(hidden)))
    shown = _shown(best, options, controlled.get(best.arm.backend))
    text = f"probe ({share:.1%} of requests); else {best.arm.label}, {_explain(shown)}"
    return Choice(hidden[at], "probe", text, best, share / len(hidden))


def _probes(ask: Ask, best: Option, options: list[Option], controlled: Controlled) -> tuple[float, list[Option]]:
    """Return the share of probes and the arms they go to."""
    if best.seconds is None:  # nothing is known: try what the fallback would hide
        return ask.rule.probe, [o for o in options if o.arm.path != ask.rule.fallback_path]
    mine = [o for o in options if o.arm.backend == best.arm.backend]
    candidate = controlled.get(best.arm.backend)
    if candidate is not None:
        off = best.arm.k == 0
        return (ask.snapshot.tuning.flight_off_share, [candidate]) if off else (0.0, [])
    both = {option.arm.k > 0 for option in mine} == {True, False}
    pools = any(o.estimate.measured and o.arm.k > 0 and o.arm.backend != best.arm.backend for o in options)
    if both and (best.arm.k > 0 or not pools):
        return best.node.probe_share, [o for o in mine if o.key in best.node.probe_arms]
    return _pool_probes(best, options)


def _pool_probes(best: Option, options: list[Option]) -> tuple[float, list[Option]]:
    """Return probes between pools: from a speculative pool to plain, from plain to the pool that wants it most."""
    if best.arm.k > 0:
        wanted = [o for o in options if o.key in best.node.probe_arms and (o.arm.k == 0 or o.node is best.node)]
        return best.node.probe_share, wanted[:1]
    pools = [o for o in options if o.arm.k > 0 and o.key in o.node.probe_arms]
    if not pools:
        return 0.0, []
    most = max(pools, key=lambda option: option.node.probe_share)
    return most.node.probe_share, [most]


def _shown(best: Option, options: list[Option], control: Option | None) -> Shown | None:
    """Return the numbers behind the preferred option: what is known in flight where requests are controlled there."""
    flight = None
    if control is not None:
        flight = control.node.flights[control.arm.method]
        offered = {o.arm.k for o in options if o.arm.backend == control.arm.backend and o.arm.method == flight.method}
        if not offered >= flight.gains.keys():
            flight = replace(flight, gains={k: gain for k, gain in flight.gains.items() if k in offered})
    rivals = [o.estimate for o in options if o.arm.k > 0] or None
    return shown_for(best.key, best.node.evidence, flight, rivals)


def _explain(shown: Shown | None) -> str:
    return shown.text if shown else "nothing known of a speculative arm"
