"""Why a rule holds for a request or not; for `breakeven policy explain` and `test`. Pure, and slow beside `match`."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import msgspec

from gateway.policy.conditions import AllOf, AnyOf, Between, Condition, Flag, Header, Not, OneOf, Share, Window
from gateway.policy.describe import condition_text
from gateway.policy.facts import Facts
from gateway.policy.match import compile_condition
from gateway.policy.schema import Policy, Rule


class Step(msgspec.Struct, frozen=True):
    """One rule that was looked at."""

    rule: str
    line: int
    holds: bool
    because: str
    """What decided: the condition that fails, or all that hold."""
    mode: str = "enforce"


def trace(policy: Policy, facts: Facts) -> list[Step]:
    """Return the rules in order up to the one that is enforced; observed ones that hold are among them."""
    steps: list[Step] = []
    for rule in policy.rules:
        step = _look(rule, facts)
        steps.append(step)
        if step.holds and rule.mode == "enforce":
            break
    return steps


def _look(rule: Rule, facts: Facts) -> Step:
    holds = holds_for(rule.when, facts)
    return Step(rule.name, rule.line, holds, _why(rule.when, facts, holds), rule.mode)


def holds_for(condition: Condition, facts: Facts) -> bool:
    """Return whether a condition holds, by the very code that matches requests."""
    test = compile_condition(condition)
    return test is None or test(facts)


def _why(condition: Condition, facts: Facts, holds: bool) -> str:
    """Return the part that decided, with the request's own value."""
    match condition:
        case AllOf(parts) if not holds:
            return "; ".join(_why(part, facts, False) for part in parts if not holds_for(part, facts))
        case AnyOf(parts) if holds:
            return next(_why(part, facts, True) for part in parts if holds_for(part, facts))
        case Not(part):
            return f"{'' if holds else 'not so: '}{condition_text(condition)}{_seen(part, facts)}"
    text = condition_text(condition)
    return text if holds else f"needs: {text}{_seen(condition, facts)}"


def _seen(condition: Condition, facts: Facts) -> str:
    """Return the request's value of the fact that a condition looks at."""
    match condition:
        case OneOf(key) | Between(key) | Flag(key):
            value = getattr(facts, key)
            return f" (here: {value if value != '' else 'empty'})"
        case Header(name):
            return f" (here: {facts.headers.get(name, 'absent')})"
        case Share():
            return f" (here: {facts.share:.1%})"
        case Window(zone=zone):
            return f" (here: {datetime.fromtimestamp(facts.at, ZoneInfo(zone)):%a %H:%M})"
    return ""
