"""Conditions and values in words, for explanations, differences and the page. Pure."""

from __future__ import annotations

import msgspec

from gateway.policy.conditions import (
    DAYS,
    AllOf,
    Always,
    AnyOf,
    Between,
    Condition,
    Flag,
    Header,
    Not,
    OneOf,
    Share,
    Window,
)
from gateway.policy.schema import Rule
from gateway.policy.units import seconds_text, share_text

_SECONDS = frozenset(
    {"half_life", "window", "budget", "retention", "connect_timeout", "first_token_timeout", "token_timeout"}
)
_SHARES = frozenset({"margin", "confidence", "probe", "holdout", "audit", "prompts", "zero_accept_alarm"})


def condition_text(condition: Condition) -> str:  # noqa: PLR0911  # one line per kind of condition
    """Return a condition as a sentence's end: `task is code or math, and temperature <= 0.5`."""
    match condition:
        case Always():
            return "every request"
        case OneOf(key, values):
            return f"{key} is {_either(values)}"
        case Between():
            return _interval(condition)
        case Flag("seed", value):
            return "a seed is set" if value else "no seed is set"
        case Flag(key, value):
            return f"{key} is {'true' if value else 'false'}"
        case Header(name, values, present):
            return f"header {name} is {_either(values) if values else 'present' if present else 'absent'}"
        case Share(share):
            return f"the conversation is in the first {share_text(share)}"
        case Window():
            return _window(condition)
        case Not(part):
            return f"not ({condition_text(part)})"
        case AllOf(parts):
            return ", and ".join(_grouped(part) for part in parts)
        case AnyOf(parts):
            return ", or ".join(_grouped(part) for part in parts)
    raise TypeError(f"no such condition: {condition!r}")


def _grouped(condition: Condition) -> str:
    text = condition_text(condition)
    return f"({text})" if isinstance(condition, AllOf | AnyOf) and len(condition.parts) > 1 else text


def _either(values: tuple[str, ...]) -> str:
    shown = [value or "empty" for value in values[:12]]
    if len(values) > 12:
        shown.append(f"{len(values) - 12} others")
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} or {shown[-1]}"


def _interval(span: Between) -> str:
    if span.low == span.high:
        return f"{span.key} = {span.low:g}"
    parts = []
    if span.low != float("-inf"):
        parts.append(f"{span.key} {'>' if span.low_open else '>='} {span.low:g}")
    if span.high != float("inf"):
        parts.append(f"{span.key} {'<' if span.high_open else '<='} {span.high:g}")
    return " and ".join(parts) or f"{span.key} is any number"


def _window(window: Window) -> str:
    def clock(minute: int) -> str:
        return f"{minute // 60:02d}:{minute % 60:02d}"

    days = "" if len(window.days) == 7 else f" on {', '.join(DAYS[day] for day in window.days)}"
    return f"the time is {clock(window.start)}-{clock(window.end)} {window.zone}{days}"


def value_text(key: str, value: object) -> str:  # noqa: PLR0911  # one line per kind of value
    """Return the value of a key as a policy writes it."""
    if value is None:
        return "any" if key in ("arms", "draft_lengths") else "off"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        if key in _SECONDS:
            return seconds_text(float(value))
        return share_text(float(value)) if key in _SHARES else f"{value:g}"
    if isinstance(value, tuple | list):
        return f"[{', '.join(str(item) for item in value)}]"
    if isinstance(value, msgspec.Struct):
        fields = msgspec.structs.asdict(value)
        return f"{{{', '.join(f'{name}: {value_text(name, inner)}' for name, inner in fields.items())}}}"
    return str(value) or "none"


def rule_lines(rule: Rule) -> list[str]:
    """Return what a rule says beyond the defaults, one line a key; for people."""
    usual = Rule(name=rule.name)
    lines = [f"when {condition_text(rule.when)}"]
    for name, value in msgspec.structs.asdict(rule).items():
        if name not in ("name", "when", "line") and (value != getattr(usual, name) or name == "path"):
            lines.append(f"{name}: {value_text(name, value)}")
    return lines
