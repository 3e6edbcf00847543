"""Reads `when`: a mapping whose keys must all hold, with `all`, `any` and `not` to build more. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from zoneinfo import ZoneInfo

from gateway.policy import units
from gateway.policy.conditions import (
    DAYS,
    AllOf,
    Always,
    AnyOf,
    Between,
    Condition,
    Flag,
    FlagKey,
    Header,
    Not,
    NumberKey,
    OneOf,
    Share,
    TextKey,
    Window,
)
from gateway.policy.diagnostics import shorten
from gateway.policy.kinds import Context, Key, ListOf, Record, Schema, Text, Wrong, decimal
from gateway.policy.kinds import Flag as FlagKind
from gateway.policy.kinds import share as share_kind
from gateway.policy.nodes import Mapping as MappingNode
from gateway.policy.nodes import Node, Scalar, Sequence, describe, unknown_key

_NUMBER = r"-?[0-9]+(?:\.[0-9]+)?"
_COMPARE = re.compile(rf"(<=|>=|<|>|==?)\s*({_NUMBER})", re.ASCII)
_RANGE = re.compile(rf"({_NUMBER})\s*\.\.\s*({_NUMBER})", re.ASCII)
_CLOCK = re.compile(r"([01]\d|2[0-4]):([0-5]\d)", re.ASCII)
_HEADER_NAME = re.compile(r"[a-z0-9-]{1,100}", re.ASCII)
_LIMIT = 1e15
VALUES = ListOf(Text("a value, in which * stands for any characters"), single=True)


@dataclass(frozen=True)
class Texts:
    """`task: code` or `task: [code, "math*"]`."""

    key: TextKey

    def read(self, node: Node, context: Context) -> Condition:
        """Return the condition."""
        return OneOf(self.key, VALUES.read(node, context))

    def schema(self) -> Schema:
        """Return the JSON Schema."""
        return VALUES.schema()


@dataclass(frozen=True)
class Numbers:
    """`temperature: 0`, `"<= 0.5"`, `0.2..0.8` or `{min: 0.2, max: 0.8}`; both ends of a range are included."""

    key: NumberKey

    def read(self, node: Node, context: Context) -> Condition:
        """Return the condition."""
        if isinstance(node, MappingNode):
            condition: Between = _BOUNDS[self.key].read(node, context)
        elif isinstance(node, Scalar) and not node.null:
            condition = self._parse(node, context)
        else:
            raise context.wrong(node, f"{_NUMBER_FORMS}, found {describe(node)}")
        if condition.low > condition.high:
            raise context.wrong(node, f"contradiction: nothing is both ≥ {condition.low:g} and ≤ {condition.high:g}")
        return condition

    def _parse(self, node: Scalar, context: Context) -> Between:
        text = node.text.strip()
        try:
            if found := _RANGE.fullmatch(text):
                return Between(self.key, units.number(found[1]), units.number(found[2]))
            if found := _COMPARE.fullmatch(text):
                value = units.number(found[2])
                if found[1] in ("<", "<="):
                    return Between(self.key, high=value, high_open=found[1] == "<")
                if found[1] in (">", ">="):
                    return Between(self.key, low=value, low_open=found[1] == ">")
                return Between(self.key, value, value)
            value = units.number(text)
        except ValueError:
            raise context.wrong(node, f"{_NUMBER_FORMS}, found {shorten(node.text)}") from None
        return Between(self.key, value, value)

    def schema(self) -> Schema:
        """Return the JSON Schema."""
        text = {"type": "string", "pattern": rf"^\s*((<=|>=|<|>|==?)\s*{_NUMBER}|{_NUMBER}\s*\.\.\s*{_NUMBER})\s*$"}
        return {"anyOf": [{"type": "number"}, text, _BOUNDS[self.key].schema()]}


_NUMBER_FORMS = "expected a number, a comparison such as '<= 0.5', a range such as 0.2..0.8, or {min: …, max: …}"


def _bounds(key: NumberKey) -> Record:
    """Return the record `{min, max}` of a number key."""
    edge = decimal(-_LIMIT, _LIMIT)
    keys = {
        "min": Key(edge, "smallest value, included", into="low"),
        "max": Key(edge, "largest value, included", into="high"),
    }
    return Record(key, lambda **edges: Between(key, **edges), keys)


_BOUNDS = {key: _bounds(key) for key in ("temperature", "prompt_tokens", "load")}


_FLAG = FlagKind()


@dataclass(frozen=True)
class Flags:
    """`stream: true`."""

    key: FlagKey
    kind: FlagKind = _FLAG

    def read(self, node: Node, context: Context) -> Condition:
        """Return the condition."""
        return Flag(self.key, self.kind.read(node, context))

    def schema(self) -> Schema:
        """Return the JSON Schema."""
        return self.kind.schema()


class Headers:
    """`header: {x-team: [search, ads], x-canary: true}`: all of them must hold."""

    def read(self, node: Node, context: Context) -> Condition:
        """Return the condition."""
        if not isinstance(node, MappingNode) or not node.items:
            raise context.wrong(
                node, f"header: expected names with values, such as {{x-team: search}}; found {describe(node)}"
            )
        parts = tuple(self._one(name, value, context) for name, value in node.items)
        return parts[0] if len(parts) == 1 else AllOf(parts)

    def _one(self, name: Scalar, value: Node, context: Context) -> Condition:
        header = name.text.lower()
        if not _HEADER_NAME.fullmatch(header):
            raise context.wrong(name, f"expected a header's name, found {shorten(name.text)}")
        if header in ("authorization", "cookie", "proxy-authorization", "x-api-key"):
            raise context.wrong(name, f"a rule cannot look at credentials ({header}); use app or key")
        if not header.startswith("x-") and header != "user-agent":
            raise context.wrong(name, f"a rule can look at x-… headers and user-agent only, found {shorten(name.text)}")
        if isinstance(value, Scalar) and value.plain and value.text in ("true", "false"):
            return Header(header, present=value.text == "true")
        return Header(header, VALUES.read(value, context))

    def schema(self) -> Schema:
        """Return the JSON Schema."""
        values = {"anyOf": [{"type": "boolean"}, VALUES.schema()]}
        return {"type": "object", "minProperties": 1, "additionalProperties": values}


def _clock(text: str) -> None:
    parts = text.split("-")
    if len(parts) != 2 or not all(_CLOCK.fullmatch(part.strip()) for part in parts):
        raise ValueError("expected hours such as 09:00-17:30")
    if any(_minutes(part) > 1440 for part in parts) or _minutes(parts[0]) == _minutes(parts[1]):
        raise ValueError("expected two different times from 00:00 to 24:00, such as 09:00-17:30")


def _minutes(text: str) -> int:
    hours, _, minutes = text.strip().partition(":")
    return int(hours) * 60 + int(minutes)


def _zone(text: str) -> None:
    try:
        ZoneInfo(text)
    except (ValueError, OSError, LookupError):
        raise ValueError("expected a time zone such as UTC or Europe/Berlin") from None


def _days(text: str) -> None:
    first, dash, last = text.lower().partition("-")
    if first not in DAYS or (dash and last not in DAYS):
        raise ValueError("expected days such as mon or mon-fri")


def _window(days: tuple[str, ...] = ("mon-sun",), hours: str = "00:00-24:00", zone: str = "UTC") -> Window:
    chosen: set[int] = set()
    for text in days:
        first, _, last = text.lower().partition("-")
        at, end = DAYS.index(first), DAYS.index(last or first)
        chosen.update((at + step) % 7 for step in range((end - at) % 7 + 1))
    start, _, stop = hours.partition("-")
    return Window(tuple(sorted(chosen)), _minutes(start), _minutes(stop), zone)


_CLOCK_TEXT = Text(
    "hours such as 09:00-17:30", check=_clock, pattern=r"^[0-2][0-9]:[0-5][0-9]\s*-\s*[0-2][0-9]:[0-5][0-9]$"
)
_WINDOW = Record(
    "time",
    _window,
    {
        "days": Key(
            ListOf(Text("days", check=_days, pattern="^[A-Za-z]{3}(-[A-Za-z]{3})?$"), single=True), "mon, sat-sun, …"
        ),
        "hours": Key(_CLOCK_TEXT, "from-to; may span midnight"),
        "zone": Key(Text("a time zone", check=_zone), "IANA name; UTC where absent"),
    },
)


class Times:
    """`time: 09:00-17:30` (UTC) or `{days: mon-fri, hours: 09:00-17:30, zone: Europe/Berlin}`."""

    def read(self, node: Node, context: Context) -> Condition:
        """Return the condition."""
        if isinstance(node, Scalar) and not node.null:
            return _window(hours=_CLOCK_TEXT.read(node, context))
        window: Window = _WINDOW.read(node, context)
        return window

    def schema(self) -> Schema:
        """Return the JSON Schema."""
        return {"anyOf": [_CLOCK_TEXT.schema(), _WINDOW.schema()]}


class Shares:
    """`share: 5%`: this part of all conversations, the same ones every time."""

    kind = share_kind()

    def read(self, node: Node, context: Context) -> Condition:
        """Return the condition."""
        return Share(self.kind.read(node, context))

    def schema(self) -> Schema:
        """Return the JSON Schema."""
        return self.kind.schema()


class When:
    """The whole condition: every key must hold. An empty mapping or no `when` is always true."""

    def read(self, node: Node, context: Context) -> Condition:
        """Return the condition; notes errors of all keys."""
        if not isinstance(node, MappingNode):
            raise context.wrong(node, f"when: expected a mapping such as {{task: code}}; found {describe(node)}")
        parts: list[Condition] = []
        failed = False
        for name, value in node.items:
            try:
                parts.append(self._key(name, value, context))
            except Wrong:
                failed = True
        if failed:
            raise Wrong
        if not parts:
            return Always()
        return parts[0] if len(parts) == 1 else AllOf(tuple(parts))

    def _key(self, name: Scalar, value: Node, context: Context) -> Condition:
        if name.text in ("all", "any"):
            parts = self._list(value, context)
            return AllOf(parts) if name.text == "all" else AnyOf(parts)
        if name.text == "not":
            return Not(self.read(value, context))
        kind = FACTS.get(name.text)
        if kind is None:
            unknown_key(name, [*FACTS, "all", "any", "not"], context.findings, "when")
            raise Wrong
        condition: Condition = kind.kind.read(value, context)
        return condition

    def _list(self, node: Node, context: Context) -> tuple[Condition, ...]:
        if not isinstance(node, Sequence) or not node.items:
            raise context.wrong(node, f"expected a list of conditions, found {describe(node)}")
        return tuple(self.read(item, context) for item in node.items)

    def schema(self) -> Schema:
        """Return the JSON Schema (recursive, by reference)."""
        return {"$ref": "#/$defs/when"}

    def definition(self) -> Schema:
        """Return what `#/$defs/when` stands for."""
        many = {"type": "array", "minItems": 1, "items": self.schema()}
        properties: dict[str, Any] = {name: {"description": key.doc} | key.kind.schema() for name, key in FACTS.items()}
        properties |= {
            "all": many | {"description": "every one holds"},
            "any": many | {"description": "at least one holds"},
        }
        properties["not"] = self.schema() | {"description": "does not hold"}
        return {"type": "object", "additionalProperties": False, "properties": properties}


_SEED = FlagKind({"set": True, "unset": False})
FACTS: Mapping[str, Key] = {
    "task": Key(Texts("task"), "the task the request was taken for"),
    "app": Key(Texts("app"), "the API key's name"),
    "key": Key(Texts("key"), "the API key's id"),
    "model": Key(Texts("model"), "the model asked for"),
    "adapter": Key(Texts("adapter"), "LoRA adapter asked for; empty text for none"),
    "header": Key(Headers(), "request headers (x-… and user-agent)"),
    "temperature": Key(Numbers("temperature"), "sampling temperature"),
    "seed": Key(Flags("seed", _SEED), "whether a seed is set"),
    "prompt_tokens": Key(Numbers("prompt_tokens"), "length of the prompt (estimated before it is tokenised)"),
    "images": Key(Flags("images"), "whether the request has images"),
    "stream": Key(Flags("stream"), "whether the answer is streamed"),
    "service_tier": Key(Texts("service_tier"), "OpenAI's service_tier; auto where absent"),
    "endpoint": Key(Texts("endpoint"), "chat or completions"),
    "time": Key(Times(), "time of day, UTC unless a zone is given"),
    "load": Key(Numbers("load"), "sequences running on the backends"),
    "share": Key(Shares(), "this part of all conversations, by hash"),
}
"""Everything a condition can look at."""
