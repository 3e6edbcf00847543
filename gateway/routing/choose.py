"""Which of the servable arms a request takes: forced, holdout, incumbent or probe. Pure; second half of `decide`."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.policy.schema import Rule
from gateway.routing.estimates import PLAIN_KEY
from gateway.routing.options import Ask, Option, hash_draw
from gateway.routing.placing import placed
from gateway.routing.shown import Shown
from gateway.routing.weigh import Weighed, probes_of, short_of_margin, shown_of


@dataclass(slots=True)
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


def choose(ask: Ask, weighed: Weighed, *, forced: bool) -> Choice:
    """Return the choice among the weighed options (at least one)."""
    usual: Choice = weighed.once("usual", lambda: _usual(ask, weighed, forced=forced))
    if forced or len(weighed.options) == 1 or ask.snapshot.stale:
        return usual
    best, moved = weighed.best, ""
    if len(ask.backends) > 1:
        best, moved = placed(ask, weighed)
    return (
        _holdout(ask, best, weighed)
        or _probe(ask, best, weighed)
        or (_moved(best, moved, weighed) if moved else None)
        or usual
    )


def _usual(ask: Ask, weighed: Weighed, *, forced: bool) -> Choice:
    """Return the choice where neither draws nor queues say otherwise."""
    best, options, shown = weighed.best, weighed.options, weighed.shown
    if forced:
        return Choice(best, "forced", f"forced by the request; {_explain(shown)}", best, shown=shown)
    if len(options) == 1:
        text = f"policy, the only arm that rule {ask.rule.name} allows; {_explain(shown)}"
        return Choice(best, "policy", text, best, shown=shown)
    if ask.snapshot.stale:
        taken = _fallback(options, ask.rule, best)
        return Choice(taken, "stale", f"stale statistics, fallback {ask.rule.fallback_path}", best)
    return _estimated(ask, best, options, weighed.controlled.get(best.arm.backend), shown)


def _moved(best: Option, why: str, weighed: Weighed) -> Choice:
    """Return the choice of another backend's best arm than the fastest."""
    shown = shown_of(best, weighed.options, weighed.controlled.get(best.arm.backend))
    return Choice(best, "ok", f"{why}, {_explain(shown)}", best, shown=shown)


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
    if best.arm.k == 0 and (best.node.state.incumbent != PLAIN_KEY or _held_back(ask, control)):
        return "policy", f"policy, margin {ask.rule.break_even.margin:.1%} not reached"
    return "no_data", "no_data, too close to call"


def _held_back(ask: Ask, control: Option | None) -> bool:
    """Return whether the rule's margin alone keeps a task plain that its backend would control in flight."""
    if control is None:
        return False
    flight = control.node.flights[control.arm.method]
    return flight.pays(flight.gains) and short_of_margin(flight, list(flight.gains), ask.rule)


def _fallback(options: list[Option], rule: Rule, best: Option) -> Option:
    if best.arm.path == rule.fallback_path:
        return best
    return next((option for option in options if option.arm.path == rule.fallback_path), best)


def holdout_of(ask: Ask, weighed: Weighed, *, forced: bool) -> float:
    """Return the share of the holdout that such a request is drawn for: 0 where there are not both paths to hold it on.

    Only with requests that it could have held the holdout may be compared.
    """
    both = {option.arm.path for option in weighed.options} == {"plain", "speculative"}
    return 0.0 if forced or ask.snapshot.stale or not both else ask.rule.holdout


def _holdout(ask: Ask, best: Option, weighed: Weighed) -> Choice | None:
    """Return the fixed arm of the holdout that this conversation (else request) falls into, if any."""
    held_share: float = weighed.once("holdout", lambda: holdout_of(ask, weighed, forced=False))
    if held_share <= 0:
        return None
    share = hash_draw(ask.conversation, b"holdout") if ask.conversation else ask.draw
    if share >= held_share:
        return None
    plain = next(option for option in weighed.options if option.arm.k == 0)
    speculative = [option for option in weighed.options if option.arm.k > 0]
    held = plain if share < held_share / 2 else min(speculative, key=_fixed_order)
    text = f"holdout ({held_share:.1%} of conversations stay on a fixed path)"
    return Choice(held, "holdout", text, best, held_share / 2)


def _fixed_order(option: Option) -> tuple[int, str]:
    """Order of the policy's fixed speculative arm: the draft length nearest 4, then the name."""
    return abs(option.arm.k - 4), str(option.arm)


def _probe(ask: Ask, best: Option, weighed: Weighed) -> Choice | None:
    """Return another arm where this request is one of the share that tries it."""
    options, controlled = weighed.options, weighed.controlled
    if best is weighed.best:
        share, hidden = weighed.once("probes", lambda: probes_of(ask, best, options, controlled))
    else:
        share, hidden = probes_of(ask, best, options, controlled)
    share = min(share, ask.rule.probe)
    position = (ask.draw - ask.rule.holdout) / max(1e-9, 1.0 - ask.rule.holdout)
    if not hidden or not 0.0 <= position < share:
        return None
    at = min(len(hidden) - 1, int(position / share * len(hidden)))
    shown = shown_of(best, options, controlled.get(best.arm.backend))
    text = f"probe ({share:.1%} of requests); else {best.arm.label}, {_explain(shown)}"
    return Choice(hidden[at], "probe", text, best, share / len(hidden))


def _explain(shown: Shown | None) -> str:
    return shown.text if shown else "nothing known of a speculative arm"
