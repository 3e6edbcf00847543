"""The building blocks of the language: each kind of value reads itself from a node and describes itself as JSON Schema.

`language.py` and `when.py` put them together; `loader.py` reads and `jsonschema.py` prints with the same tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from gateway.policy import units
from gateway.policy.diagnostics import Findings, shorten, suggest
from gateway.policy.nodes import Mapping as MappingNode
from gateway.policy.nodes import Node, Scalar, Sequence, describe, unknown_key

Schema = dict[str, Any]
Value = Any
"""What a kind reads: its own type."""


class Wrong(Exception):  # control flow, not an error of its own
    """A value could not be read; the finding is already noted."""


@dataclass(slots=True)
class Context:
    """What reading needs beside the nodes."""

    findings: Findings
    env: Mapping[str, str]
    """Variables for `${NAME}`."""

    def wrong(self, node: Node, message: str) -> Wrong:
        """Note an error at a node; return what to raise."""
        self.findings.error(node.position, message)
        return Wrong()


class Kind(Protocol):
    """A kind of value."""

    def read(self, node: Node, context: Context) -> Value:
        """Return the value. Raises Wrong after noting why not."""

    def schema(self) -> Schema:
        """Return the JSON Schema of what `read` accepts."""


def scalar(node: Node, context: Context, expected: str) -> Scalar:
    """Return the node as a scalar with something in it."""
    if not isinstance(node, Scalar) or node.null:
        raise context.wrong(node, f"expected {expected}, found {describe(node)}")
    return node


@dataclass(frozen=True)
class Text:
    """Any text of bounded length, optionally checked."""

    expected: str = "text"
    limit: int = 500
    check: Callable[[str], None] | None = None
    """Raises ValueError saying what was expected."""
    pattern: str | None = None

    def read(self, node: Node, context: Context) -> str:
        """Return the text."""
        text = scalar(node, context, self.expected).text
        if len(text) > self.limit:
            raise context.wrong(node, f"expected {self.expected} of at most {self.limit} characters, found {len(text)}")
        if self.check is not None:
            try:
                self.check(text)
            except ValueError as error:
                raise context.wrong(node, f"{error}, found {shorten(text)}") from None
        return text

    def schema(self) -> Schema:
        """Return the JSON Schema."""
        return {"type": "string", "maxLength": self.limit} | ({"pattern": self.pattern} if self.pattern else {})


@dataclass(frozen=True)
class Choice:
    """One of a few words."""

    words: tuple[str, ...]

    def read(self, node: Node, context: Context) -> str:
        """Return the word."""
        text = scalar(node, context, " or ".join(self.words)).text
        if text not in self.words:
            raise context.wrong(node, f"unknown value {shorten(text)}{suggest(text, self.words)}")
        return text

    def schema(self) -> Schema:
        """Return the JSON Schema."""
        return {"enum": list(self.words)}


@dataclass(frozen=True)
class Quantity:
    """A number with bounds, in one of the notations of `units.py`."""

    parse: Callable[[str], float]
    low: float
    high: float
    form: Schema
    show: Callable[[float], str] = "{:g}".format
    open_low: bool = False
    """Whether `low` itself is excluded."""

    def read(self, node: Node, context: Context) -> float:
        """Return the number in its base unit."""
        text = scalar(node, context, "a number").text
        try:
            value = self.parse(text)
        except ValueError as error:
            raise context.wrong(node, f"{error}, found {shorten(text)}") from None
        if not self.low <= value <= self.high or (self.open_low and value == self.low):
            edge = "more than" if self.open_low else "at least"
            raise context.wrong(
                node, f"expected {edge} {self.show(self.low)} and at most {self.show(self.high)}, found {shorten(text)}"
            )
        return value

    def schema(self) -> Schema:
        """Return the JSON Schema."""
        return self.form


def whole(low: int, high: int) -> Quantity:
    """A whole number."""
    return Quantity(units.integer, low, high, {"type": "integer", "minimum": low, "maximum": high}, "{:,.0f}".format)


def decimal(low: float, high: float, *, open_low: bool = False) -> Quantity:
    """A number."""
    edge = "exclusiveMinimum" if open_low else "minimum"
    return Quantity(units.number, low, high, {"type": "number", edge: low, "maximum": high}, open_low=open_low)


def duration(low: float, high: float) -> Quantity:
    """A time with its unit."""
    return Quantity(
        units.duration, low, high, {"type": "string", "pattern": units.DURATION_PATTERN}, units.seconds_text
    )


def share(high: float = 1.0, low: float = 0) -> Quantity:
    """A share in percent or as a fraction; `off`, `none`, `all` where 0 or 1 are among them."""
    words = (["off", "none", False] if low == 0 else []) + (["all"] if high == 1.0 else [])
    form: list[Schema] = [
        {"type": "string", "pattern": units.PERCENT_PATTERN},
        {"type": "number", "minimum": low, "maximum": high},
    ]
    return Quantity(units.share, low, high, {"anyOf": [*form, {"enum": words}] if words else form}, units.share_text)


@dataclass(frozen=True)
class Flag:
    """Yes or no, with further words that mean the same."""

    words: Mapping[str, bool] = field(default_factory=dict)

    def read(self, node: Node, context: Context) -> bool:
        """Return the truth value."""
        text = scalar(node, context, "true or false").text
        if text in self.words:
            return self.words[text]
        try:
            return units.flag(text)
        except ValueError as error:
            raise context.wrong(node, f"{error}, found {shorten(text)}") from None

    def schema(self) -> Schema:
        """Return the JSON Schema."""
        return {"enum": [True, False, *self.words]} if self.words else {"type": "boolean"}


@dataclass(frozen=True)
class Off:
    """A value that can be turned off with `off` or `none`."""

    kind: Kind
    value: Value = None

    def read(self, node: Node, context: Context) -> Value:
        """Return the value, or `self.value` for off."""
        if isinstance(node, Scalar) and node.plain and node.text.lower() in ("off", "none", "false", "no"):
            return self.value
        return self.kind.read(node, context)

    def schema(self) -> Schema:
        """Return the JSON Schema."""
        return {"anyOf": [{"enum": ["off", "none", False]}, self.kind.schema()]}


@dataclass(frozen=True)
class ListOf:
    """A list of equal kinds; `single` also takes one value without brackets."""

    kind: Kind
    limit: int = 256
    single: bool = False
    least: int = 1

    def read(self, node: Node, context: Context) -> tuple[Any, ...]:
        """Return the values; notes errors of all of them."""
        if self.single and isinstance(node, Scalar) and not node.null:
            return (self.kind.read(node, context),)
        if not isinstance(node, Sequence):
            raise context.wrong(node, f"expected a list, found {describe(node)}")
        if not self.least <= len(node.items) <= self.limit:
            raise context.wrong(node, f"expected {self.least} to {self.limit:,} entries, found {len(node.items):,}")
        values = []
        failed = False
        for item in node.items:
            try:
                values.append(self.kind.read(item, context))
            except Wrong:
                failed = True
        if failed:
            raise Wrong
        return tuple(values)

    def schema(self) -> Schema:
        """Return the JSON Schema."""
        inner = self.kind.schema()
        form: Schema = {"type": "array", "items": inner, "minItems": self.least, "maxItems": self.limit}
        return {"anyOf": [inner, form]} if self.single else form


@dataclass(frozen=True)
class Key:
    """One key of a record."""

    kind: Kind
    doc: str
    required: bool = False
    into: str | None = None
    """Name of the struct's field, where it differs."""


@dataclass(frozen=True)
class Record:
    """A mapping with known keys, turned into a struct."""

    name: str
    """What messages call it."""
    make: Callable[..., Any]
    keys: Mapping[str, Key]
    positions: bool = False
    """Whether `make` wants the node as its first argument."""

    def read(self, node: Node, context: Context) -> Value:
        """Return `make(**values)`; keys that are absent keep the struct's defaults."""
        if not isinstance(node, MappingNode):
            example = ", ".join(list(self.keys)[:4])
            raise context.wrong(
                node, f"{self.name}: expected a mapping with keys such as {example}; found {describe(node)}"
            )
        values, failed = self.values(node, context)
        if failed:
            raise Wrong
        return self.make(node, **values) if self.positions else self.make(**values)

    def values(self, node: MappingNode, context: Context) -> tuple[dict[str, Any], bool]:
        """Return what could be read, and whether something could not."""
        values: dict[str, Any] = {}
        failed = False
        for name, value in node.items:
            key = self.keys.get(name.text)
            if key is None:
                unknown_key(name, list(self.keys), context.findings, self.name)
                failed = True
                continue
            try:
                values[key.into or name.text.replace("-", "_")] = key.kind.read(value, context)
            except Wrong:
                failed = True
        for name_, key in self.keys.items():
            if key.required and node.get(name_) is None:
                context.findings.error(node.position, f"{self.name}: the key '{name_}' is missing ({key.doc})")
                failed = True
        return values, failed

    def schema(self) -> Schema:
        """Return the JSON Schema."""
        form: Schema = {
            "type": "object",
            "additionalProperties": False,
            "properties": {name: {"description": key.doc} | key.kind.schema() for name, key in self.keys.items()},
        }
        required = [name for name, key in self.keys.items() if key.required]
        return form | ({"required": required} if required else {})
