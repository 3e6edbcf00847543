"""Snapshot, rule and load → the arm that one request takes, with the reason. Pure and fast (memory only).

Order: hard vetoes, the client's wish and the rule, the p99 guard, holdout, then the lowest expected time per token,
then probes. Called by `gateway.serve` for every request, by `breakeven policy explain` and by the simulator.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.messages import Adaptive, Speculation
from gateway.policy.schema import Rule
from gateway.routing import reasons
from gateway.routing.choose import choose
from gateway.routing.options import Ask, Option, forced_by, guarded, load_of, options_of, servable
from gateway.routing.snapshot import Snapshot
from gateway.types import PLAIN, BackendState, Classification, Decision, GenerateRequest

EAGER_PROBE = 16
"""Plain steps between probes in flight where the request itself is a probe."""


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
) -> Decision:
    """Return the decision for one request; `draw` is uniform in [0, 1) from a keyed hash of the request.

    Raises InvalidRequest where no backend could ever serve it (window, tools), NotFound for a forced arm that does not
    exist, Unavailable where no arm can answer now.
    """
    ask = Ask(request, classification.task, rule, snapshot, backends, prompt_tokens, draw, conversation)
    vetoes: list[str] = []
    arms = servable(ask, vetoes)
    forced = forced_by(ask, arms)
    options = options_of(ask, forced or arms)
    slow: list[str] = []
    if forced is None:
        options = guarded(ask, options, slow)
    choice = choose(ask, options, forced=forced is not None)
    chosen, state, text = choice.option, choice.state, choice.text
    if slow and state in ("ok", "no_data", "policy"):
        state, text = "p99", f"p99 guard, {slow[0]}; {text}"
    vetoes += slow
    if vetoes and state in ("ok", "no_data", "policy") and len({option.arm.path for option in options}) == 1:
        state, text = "veto", f"veto {vetoes[0]}; {text}"
    return Decision(
        arm=chosen.arm,
        reason=reasons.line(chosen.arm, text),
        state=state,
        rule=rule.name,
        policy=policy,
        numbers=_numbers(chosen, options),
        vetoes=vetoes,
        speculation=_speculation(chosen, options, state),
        load=load_of(chosen.state),
        plain_s=chosen.node.evidence.plain_s,
        propensity=choice.propensity,
        incumbent="" if choice.preferred.arm == chosen.arm else str(choice.preferred.arm),
    )


def _numbers(chosen: Option, options: list[Option]) -> dict[str, Any]:
    """Return the numbers of the arm taken (of the best speculative one where plain is taken) and what was on offer."""
    shown = chosen
    if chosen.arm.k == 0:
        rivals = [o for o in options if o.arm.k > 0]
        shown = min(rivals, key=lambda o: o.estimate.r) if rivals else chosen
    numbers = reasons.numbers_of(shown.estimate)
    numbers["of"] = str(shown.arm)
    lengths = {arm.k for arm in chosen.state.arms if arm.method == chosen.arm.method and arm.k}
    numbers["offered"] = sorted(lengths)  # all of them: what a request reveals does not hang on what its rule allows
    return numbers


def _speculation(chosen: Option, options: list[Option], state: str) -> Speculation | None:
    """Return what a backend that switches per request is told; fixed paths get no in-flight control."""
    arm = chosen.arm
    if not chosen.state.per_request_switch:
        return None
    if arm.k == 0:
        return Speculation(PLAIN, 0)
    if not chosen.state.adaptive or state in ("forced", "holdout"):
        return Speculation(arm.method, arm.k)
    flight = chosen.node.flights.get(arm.method)
    allowed = {o.arm.k for o in options if o.arm.method == arm.method and o.arm.backend == arm.backend}
    pairs = [(k, round(x, 4)) for k, x in sorted(flight.costs.items()) if k in allowed] if flight else []
    if flight is None or not pairs:
        return Speculation(arm.method, arm.k)
    prior = flight.prior[: arm.k]
    probe = EAGER_PROBE if state == "probe" else flight.probe
    return Speculation(arm.method, arm.k, Adaptive(pairs, prior, flight.strength, probe))
