"""Which of the servable arms a request takes: forced, holdout, incumbent or probe. Pure; second half of `decide`."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from gateway.policy.schema import Rule
from gateway.routing import reasons
from gateway.routing.options import Ask, Option


@dataclass(frozen=True, slots=True)
class Choice:
    """The option taken, and why."""

    option: Option
    state: str
    text: str
    propensity: float = 1.0


def choose(ask: Ask, options: list[Option], *, forced: bool) -> Choice:
    """Return the choice among `options` (at least one)."""
    best = preferred(options, ask.rule)
    if forced:
        return Choice(best, "forced", f"forced by the request; {reasons.comparison(best.estimate)}")
    if len(options) == 1:
        return Choice(best, "policy", f"the only arm that rule {ask.rule.name} allows; {_explain(best, options)}")
    if ask.snapshot.stale:
        taken = _fallback(options, ask.rule, best)
        return Choice(taken, "stale", f"stale statistics, fallback {ask.rule.fallback_path}")
    return _holdout(ask, options) or _probe(ask, best, options) or _estimated(ask, best, options)


def _estimated(ask: Ask, best: Option, options: list[Option]) -> Choice:
    """Return the arm that the estimates (or, without any, the initial rule) prefer."""
    if best.seconds is None or all(option.seconds is None for option in options if option.arm.k):
        taken = _fallback(options, ask.rule, best)
        return Choice(taken, "no_data", f"no_data, costs unknown, fallback {ask.rule.fallback_path}")
    if not best.node.state.settled:
        seen = round(max((option.estimate.requests for option in options), default=0))
        return Choice(best, "no_data", f"no_data, {seen} requests seen, {_explain(best, options)}")
    return Choice(best, "ok", _explain(best, options))


def preferred(options: list[Option], rule: Rule) -> Option:
    """Return the preferred option: per backend its incumbent where allowed, over backends the lowest time."""
    leaders: list[Option] = []
    for name in {option.arm.backend: None for option in options}:
        mine = [option for option in options if option.arm.backend == name]
        incumbent = mine[0].node.state.incumbent
        leader = next((o for o in mine if o.key == incumbent), None)
        if leader is None:
            leader = min(mine, key=lambda o: (o.seconds is None and o.arm.k > 0, o.estimate.r, o.arm.k))
        leaders.append(_with_margin(leader, mine, rule))
    known = [leader for leader in leaders if leader.seconds is not None]
    if len(leaders) > 1 and len(known) == len(leaders):
        return min(known, key=lambda o: o.seconds or 0.0)
    plain = [leader for leader in leaders if leader.arm.k == 0]
    return (plain or leaders)[0] if len(leaders) > 1 else leaders[0]


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


def _holdout(ask: Ask, options: list[Option]) -> Choice | None:
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
    return Choice(held, "holdout", text, rule.holdout / 2)


def _fixed_order(option: Option) -> tuple[int, str]:
    """Order of the policy's fixed speculative arm: the draft length nearest 4, then the name."""
    return abs(option.arm.k - 4), str(option.arm)


def _hash_draw(text: str) -> float:
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=7, person=b"holdout").digest()
    return int.from_bytes(digest, "big") / 2**56


def _probe(ask: Ask, best: Option, options: list[Option]) -> Choice | None:
    """Return another arm where this request is one of the share that tries it."""
    node, rule, draw = best.node, ask.rule, ask.draw
    hidden = [o for o in options if o.key in node.probe_arms and o.arm.backend == best.arm.backend]
    if best.seconds is None:  # nothing is known: try what the fallback would hide
        hidden = [o for o in options if o.arm.path != rule.fallback_path]
        share = rule.probe
    else:
        share = min(node.probe_share, rule.probe)
    if not hidden or share <= 0:
        return None
    position = (draw - rule.holdout) / max(1e-9, 1.0 - rule.holdout)
    if not 0.0 <= position < share:
        return None
    at = min(len(hidden) - 1, int(position / share * len(hidden)))
    text = f"probe ({share:.1%} of requests); else {best.arm.label}, {_explain(best, options)}"
    return Choice(hidden[at], "probe", text, share / len(hidden))


def _explain(best: Option, options: list[Option]) -> str:
    if best.arm.k > 0:
        return reasons.comparison(best.estimate)
    rivals = [o for o in options if o.arm.k > 0 and o.estimate.requests > 0]
    if not rivals:
        return "nothing known of a speculative arm"
    rival = min(rivals, key=lambda o: o.estimate.r)
    return f"{rival.arm.label} {reasons.comparison(rival.estimate)}"
