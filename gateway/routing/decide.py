"""Snapshot, rule and load → the arm that one request takes, with the reason. Pure and fast (memory only).

Order: hard vetoes, the client's wish and the rule, the p99 guard, holdout, then the lowest expected time per token,
then probes. Called by `gateway.serve` for every request, by `breakeven policy explain` and by the simulator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.messages import Adaptive, Speculation
from gateway.policy.schema import Rule
from gateway.routing import reasons
from gateway.routing.alarm import alarming
from gateway.routing.choose import Choice, choose, holdout_of
from gateway.routing.options import Ask, Option, forced_by, guarded, load_of, servable, shown_at
from gateway.routing.snapshot import Snapshot
from gateway.routing.weigh import Weighed, weigh
from gateway.types import PLAIN, Arm, BackendState, Classification, Decision, GenerateRequest

EAGER_PROBE = 1
"""Plain steps before the first probe in flight where the request itself is a probe: its output may be short."""


def decide(
    request: GenerateRequest,
    classification: Classification,
    rule: Rule,
    snapshot: Snapshot,
    backends: Mapping[str, BackendState],
    *,
    prompt_tokens: int,
    draw: float,
    policy: str,
    conversation: str = "",
    home: str = "",
) -> Decision:
    """Return the decision for one request; `draw` is uniform in [0, 1) from a keyed hash of the request.

    `home` is the backend that answered the conversation last, where known.

    Raises InvalidRequest where no backend could ever serve it (window, tools), NotFound for a forced arm that does not
    exist, Unavailable where no arm can answer now.
    """
    view = snapshot.under(rule.break_even)
    ask = Ask(request, classification.task, rule, view, backends, prompt_tokens, draw, conversation, home)
    vetoes: list[str] = []
    arms = servable(ask, vetoes)
    forced = forced_by(ask, arms)
    weighed = weigh(ask, forced or arms, forced=forced is not None)
    slow: list[str] = []
    if forced is None and rule.p99 is not None:
        left = guarded(ask, weighed.options, slow)
        if len(left) < len(weighed.options):
            weighed = weigh(ask, [option.arm for option in left], forced=False)
    choice = choose(ask, weighed, forced=forced is not None)
    chosen, state, text = choice.option, choice.state, choice.text
    if forced is None and request.path_wish not in ("auto", chosen.arm.path) and request.identity.may_force:
        text = f"x-breakeven-path: {request.path_wish} cannot be met now; {text}"
    if slow and state in ("ok", "no_data", "policy"):
        state, text = "p99", f"p99 guard, {slow[0]}; {text}"
    vetoes += slow
    if vetoes and state in ("ok", "no_data", "policy") and len({o.arm.path for o in weighed.options}) == 1:
        state, text = "veto", f"veto {vetoes[0]}; {text}"
    told = _told(choice, weighed)
    shown = view.nodes.get(shown_at(chosen.place, ask.task), chosen.node)
    chosen.node.alarm_at = shown.alarm_at = rule.zero_accept_alarm
    busy = backends[chosen.arm.backend]
    return Decision(
        arm=chosen.arm,
        reason=told.line if text is choice.text else reasons.line(chosen.arm, text),
        state=state,
        rule=rule.name,
        policy=policy,
        numbers=told.numbers.copy(),
        vetoes=vetoes,
        speculation=told.speculation,
        load=load_of(busy),
        waiting=busy.waiting,
        plain_s=chosen.node.evidence.plain_s,
        propensity=choice.propensity,
        holdout=weighed.once("holdout", lambda: holdout_of(ask, weighed, forced=forced is not None)),
        incumbent=told.incumbent,
    )


@dataclass(slots=True)
class _Told:
    """What a choice says of itself."""

    line: str
    numbers: dict[str, Any]
    speculation: Speculation | None
    incumbent: str


def _told(choice: Choice, weighed: Weighed) -> _Told:
    """Return it; for the choice that most requests of a kind get, from memory."""
    if choice is weighed.kept["usual"]:
        found: _Told = weighed.once("told", lambda: _tell(choice, weighed))
        return found
    return _tell(choice, weighed)


def _tell(choice: Choice, weighed: Weighed) -> _Told:
    arm, other = choice.option.arm, choice.preferred.arm
    return _Told(
        reasons.line(arm, choice.text),
        _numbers(choice, weighed.options, weighed.rule),
        _speculation(choice, weighed.options),
        "" if other == arm else str(other),
    )


def _numbers(choice: Choice, options: list[Option], rule: Rule) -> dict[str, Any]:
    """Return the numbers behind the choice (of the best speculative arm where plain is taken), and what was on offer.

    `zero_accept_alarm`: whether they raise the rule's alarm; it never changes the arm.
    """
    chosen = choice.option
    estimate, backend = chosen.estimate, chosen.arm.backend
    if choice.shown is not None and choice.preferred is chosen:
        estimate = choice.shown.estimate
    elif chosen.arm.k == 0:
        rivals = [o for o in options if o.arm.k > 0]
        if rivals:
            best = min(rivals, key=lambda o: o.estimate.r)
            estimate, backend = best.estimate, best.arm.backend
    numbers = reasons.numbers_of(estimate)
    method, k = estimate.key
    backend = next((o.arm.backend for o in options if o.key == estimate.key), backend)
    numbers["of"] = str(Arm(backend, method, k) if k else chosen.arm)
    numbers["zero_accept_alarm"] = alarming(estimate, rule.zero_accept_alarm)
    lengths = {arm.k for arm in chosen.state.arms if arm.method == chosen.arm.method and arm.k}
    numbers["offered"] = sorted(lengths)  # all of them: what a request reveals does not hang on what its rule allows
    return numbers


def _speculation(choice: Choice, options: list[Option]) -> Speculation | None:
    """Return what a backend that switches per request is told; fixed paths get no in-flight control."""
    chosen = choice.option
    arm = chosen.arm
    if not chosen.state.per_request_switch:
        return None
    if arm.k == 0:
        return Speculation(PLAIN, 0)
    if not chosen.state.adaptive or choice.state in ("forced", "holdout"):
        return Speculation(arm.method, arm.k)
    flight = chosen.node.flights.get(arm.method)
    allowed = {o.arm.k for o in options if o.arm.method == arm.method and o.arm.backend == arm.backend}
    pairs = [(k, round(x, 4)) for k, x in sorted(flight.costs.items()) if k in allowed] if flight else []
    if flight is None or not pairs:
        return Speculation(arm.method, arm.k)
    prior = flight.told[: arm.k]
    eager = choice.state == "probe" and choice.propensity < 1.0
    probe = EAGER_PROBE if eager else flight.probe
    streaks = flight.streaks
    after = (list(streaks.after_full), list(streaks.after_other), list(streaks.after_gap))
    return Speculation(arm.method, arm.k, Adaptive(pairs, prior, flight.strength, probe, *after))
