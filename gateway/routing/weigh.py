"""What the statistics say of the arms on offer for one kind of request: worked out once per snapshot, not per request.

A snapshot stays as it is until the next refresh, and requests of a kind at one load under one rule differ only in what
they draw, where they come from and how busy backends are at that moment: that is left to `choose`. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gateway.bands import context_band, load_band, temperature_band
from gateway.policy.schema import BreakEven, Rule
from gateway.routing.estimates import PLAIN_KEY
from gateway.routing.flight import Flight
from gateway.routing.options import Ask, Option, load_of, note_asked, options_of
from gateway.routing.shown import Shown, shown_for
from gateway.routing.tuning import Tuning
from gateway.types import Arm

_USUAL_MARGIN = BreakEven().margin
Controlled = dict[str, Option]
"""By backend: the option that goes out under in-flight control."""


@dataclass(slots=True)
class Weighed:
    """The options of one kind of request, and what follows from them alone."""

    rule: Rule
    options: list[Option]
    controlled: Controlled
    best: Option
    """What the statistics prefer."""
    leaders: dict[str, Option]
    """What each backend would take such a request with."""
    shown: Shown | None
    """The numbers behind `best`."""
    kept: dict[str, Any] = field(default_factory=dict)
    """What callers have worked out from all this, under names of their own."""

    def once(self, name: str, work: Callable[[], Any]) -> Any:  # noqa: ANN401  # whatever `work` returns
        """Return what `work` returns, which is called once."""
        found = self.kept.get(name)
        if found is None:
            found = self.kept[name] = work()
        return found


def weigh(ask: Ask, arms: Sequence[Arm], *, forced: bool) -> Weighed:
    """Return what is known of `arms` for requests like this one."""
    snapshot, tokens = ask.snapshot, ask.prompt_tokens
    loads = [load_band(load_of(state)) for state in ask.backends.values()]
    bands = (temperature_band(ask.request.temperature), context_band(tokens))
    application = ask.request.application if snapshot.finer else ""
    key = (id(ask.rule), forced, ask.task, application, bands, *loads, *arms)
    found = snapshot.weighed.get(key)
    if found is None or found.rule is not ask.rule:
        found = snapshot.weighed[key] = _weigh(ask, arms, forced=forced)
    elif snapshot.views or snapshot.thresholds:
        for option in found.options:
            note_asked(ask, option.place)
    return found


def _weigh(ask: Ask, arms: Sequence[Arm], *, forced: bool) -> Weighed:
    options = options_of(ask, arms)
    controlled = candidates(options)
    best = preferred(options, ask.rule, controlled)
    shown = shown_of(best, options, None if forced else controlled.get(best.arm.backend))
    return Weighed(ask.rule, options, controlled, best, _leaders(best, options, controlled, ask.rule), shown)


def _leaders(best: Option, options: list[Option], controlled: Controlled, rule: Rule) -> dict[str, Option]:
    """Return what each backend would take this request with."""
    leaders = {best.arm.backend: best}
    for name in {option.arm.backend: None for option in options if option.arm.backend != best.arm.backend}:
        mine = [option for option in options if option.arm.backend == name]
        leaders[name] = in_flight(controlled.get(name), mine, rule) or _incumbent(mine)
    return leaders


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
        leaders.append(in_flight(controlled.get(name), mine, rule) or _with_margin(_incumbent(mine), mine, rule))
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


def in_flight(best: Option | None, mine: list[Option], rule: Rule) -> Option | None:
    """Return what one backend's requests take where it controls them in flight; None where it does not.

    The longest draft on offer goes out as the limit and the engine chooses below it; a task whose prior says plain goes
    plain once its probes in flight did not pay, and at once where not even its best requests would gain, or where the
    rule asks for more than its mean gains.
    """
    if best is None:
        return None
    flight = best.node.flights[best.arm.method]
    plain = next((option for option in mine if option.arm.k == 0), None)
    lengths = [option.arm.k for option in mine if option.arm.method == best.arm.method]
    pays = flight.pays(lengths) and not short_of_margin(flight, lengths, rule)
    return best if plain is None or pays else plain


def short_of_margin(flight: Flight, lengths: Sequence[int], rule: Rule) -> bool:
    """Return whether a task gains less in flight than the rule asks for; the usual margin is left to the engine."""
    margin = rule.break_even.margin
    if margin <= _USUAL_MARGIN or not flight.sure:
        return False
    return max((flight.gains[k] for k in lengths if k in flight.gains), default=0.0) * (1.0 - margin) < 1.0


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
    if leader.estimate.r <= 1.0 - rule.break_even.margin or rule.break_even.margin <= _USUAL_MARGIN:
        return leader
    return next((option for option in mine if option.arm.k == 0), leader)


def shown_of(best: Option, options: list[Option], control: Option | None) -> Shown | None:
    """Return the numbers behind the preferred option: what is known in flight where requests are controlled there."""
    flight = None
    if control is not None:
        flight = control.node.flights[control.arm.method]
        offered = {o.arm.k for o in options if o.arm.backend == control.arm.backend and o.arm.method == flight.method}
        if not offered >= flight.gains.keys():
            flight = replace(flight, gains={k: gain for k, gain in flight.gains.items() if k in offered})
    rivals = [o.estimate for o in options if o.arm.k > 0] or None
    return shown_for(best.key, best.node.evidence, flight, rivals)


def probes_of(ask: Ask, best: Option, options: list[Option], controlled: Controlled) -> tuple[float, list[Option]]:
    """Return the share of probes and the arms they go to."""
    if best.seconds is None:  # nothing is known: try what the fallback would hide
        return ask.rule.probe, [o for o in options if o.arm.path != ask.rule.fallback_path]
    mine = [o for o in options if o.arm.backend == best.arm.backend]
    candidate = controlled.get(best.arm.backend)
    if candidate is not None:
        return _eager_share(candidate, best, [o.arm.k for o in mine], ask.snapshot.tuning), [candidate]
    both = {option.arm.k > 0 for option in mine} == {True, False}
    pools = any(o.estimate.measured and o.arm.k > 0 and o.arm.backend != best.arm.backend for o in options)
    if both and (best.arm.k > 0 or not pools):
        return best.node.probe_share, [o for o in mine if o.key in best.node.probe_arms]
    return _pool_probes(best, options)


def _eager_share(candidate: Option, best: Option, lengths: Sequence[int], tuning: Tuning) -> float:
    """Return the share of requests that draft soon after they began although their task's mean loses.

    Others draft again after a while, which short outputs do not see: without this share, off would stay off there.
    """
    flight = candidate.node.flights[candidate.arm.method]
    if best.arm.k and not flight.off(lengths):
        return 0.0
    return tuning.flight_off_share if flight.off(lengths, at_most=True) else tuning.probe_max


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
