"""Kinds of value that only policies have: names, URLs with variables, arms, entries with names. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from gateway.policy.diagnostics import shorten
from gateway.policy.kinds import Context, Kind, ListOf, Record, Schema, Text, Value, Wrong, scalar
from gateway.policy.nodes import Mapping as MappingNode
from gateway.policy.nodes import Node, Scalar, Sequence, describe
from gateway.policy.schema import BackendConfig
from gateway.types import Arm

NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"
TASK_NAME = r"[a-z][a-z0-9_]{0,39}"
VARIABLE = re.compile(r"\$(?:\$|\{([^}]*)\})")
_VARIABLE_BODY = re.compile(r"(BREAKEVEN_[A-Z0-9_]{1,80})(?::-(.*))?", re.ASCII | re.DOTALL)
_SECRET = frozenset({"BREAKEVEN_DATABASE_URL", "BREAKEVEN_REDIS_URL"})


def matching(pattern: str, expected: str) -> Text:
    """A text of a given form."""
    compiled = re.compile(pattern, re.ASCII)

    def check(text: str) -> None:
        if not compiled.fullmatch(text):
            raise ValueError(f"expected {expected}")

    return Text(expected, limit=200, check=check, pattern=f"^{pattern}$")


RULE_NAME = matching(
    r"[A-Za-z0-9][A-Za-z0-9_. -]{0,63}", "a name of letters, digits, '-', '_', '.' and spaces (at most 64)"
)
BACKEND_NAME = matching(NAME, "a name of letters, digits, '-', '_' and '.' (at most 64)")
TASK = matching(TASK_NAME, "a task's name: lower-case letters, digits and '_', at most 40")
PRINTABLE = matching(r"[ -~]{1,200}", "printable ASCII text of at most 200 characters")
ARM_PATTERN = matching(
    r"([A-Za-z0-9_.*?-]{1,64}/)?[A-Za-z0-9_.*?-]{1,64}",
    "an arm such as engine/ngram-k4, engine/*, ngram-*, ngram or plain",
)


@dataclass(frozen=True)
class Substituted:
    """Text with environment variables: `${BREAKEVEN_NAME}`, `${BREAKEVEN_NAME:-default}`; `$$` is a `$`."""

    expected: str
    url: bool = False

    def read(self, node: Node, context: Context) -> str:
        """Return the text with its variables filled in."""
        text = scalar(node, context, self.expected).text
        if len(text) > 2000:
            raise context.wrong(node, f"expected {self.expected} of at most 2,000 characters")
        value = VARIABLE.sub(lambda found: "$" if found[1] is None else self._variable(found[1], node, context), text)
        if self.url:
            return self._url(value, node, context)
        if not value or not value.isprintable():
            raise context.wrong(node, f"expected {self.expected}, found nothing printable")
        return value

    def _variable(self, body: str, node: Node, context: Context) -> str:
        found = _VARIABLE_BODY.fullmatch(body)
        if not found or found[1] in _SECRET:
            raise context.wrong(
                node,
                f"variable {shorten(body)}: expected ${{BREAKEVEN_NAME}} or ${{BREAKEVEN_NAME:-…}} (no store's URL)",
            )
        value = context.env.get(found[1]) or found[2]
        if value is None:
            raise context.wrong(
                node, f"the environment variable {found[1]} is not set; give a default: ${{{found[1]}:-…}}"
            )
        return value

    def _url(self, value: str, node: Node, context: Context) -> str:
        try:
            parts = urlsplit(value)
            good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            good = False
        if not good or not value.isascii() or re.search(r"[\s\x00-\x20]", value):
            raise context.wrong(node, f"expected a URL such as http://127.0.0.1:8001, found {shorten(value)}")
        if parts.username is not None or parts.query or parts.fragment:
            raise context.wrong(node, "a backend's URL has no user, query or fragment; put the token into api_key")
        return value.rstrip("/").removesuffix("/v1")

    def schema(self) -> Schema:
        """Return the JSON Schema."""
        return {"type": "string", "maxLength": 2000}


@dataclass(frozen=True)
class Named:
    """Entries with names: a mapping `name: {…}`, or a list of `{name: …, …}`."""

    record: Record
    name: Kind
    limit: int
    short: str | None = None
    """Key that a plain text stands for; an empty value is an empty record."""

    def read(self, node: Node, context: Context) -> list[tuple[Node, Any]]:
        """Return (node, value) of each entry."""
        if isinstance(node, MappingNode):
            entries = [self._pair(name, value) for name, value in node.items]
        elif isinstance(node, Sequence):
            entries = [self._item(item) for item in node.items]
        else:
            raise context.wrong(node, f"{self.record.name}: expected a mapping or a list, found {describe(node)}")
        if not 1 <= len(entries) <= self.limit:
            raise context.wrong(node, f"{self.record.name}: expected 1 to {self.limit} entries, found {len(entries)}")
        found: dict[str, tuple[Node, Any]] = {}
        failed = False
        for entry in entries:
            try:
                value = self.record.read(entry, context)
            except Wrong:
                failed = True
                continue
            if value.name in found:
                context.wrong(entry, f"duplicate {self.record.name} {shorten(value.name)}; names are unique")
                failed = True
            found[value.name] = (entry, value)
        if failed:
            raise Wrong
        return list(found.values())

    def _pair(self, name: Scalar, value: Node) -> Node:
        """Turn `name: {…}` into `{name: …, …}`."""
        head = (Scalar(name.mark, "name", True), name)
        if isinstance(value, MappingNode):
            return MappingNode(name.mark, [head, *value.items])
        if isinstance(value, Scalar) and value.null:
            return MappingNode(name.mark, [head])
        if isinstance(value, Scalar) and self.short:
            return MappingNode(name.mark, [head, (Scalar(value.mark, self.short, True), value)])
        return value

    def _item(self, item: Node) -> Node:
        """Turn a bare name in a list into `{name: …}`."""
        if isinstance(item, Scalar) and self.short:
            return MappingNode(item.mark, [(Scalar(item.mark, "name", True), item)])
        return item

    def schema(self) -> Schema:
        """Return the JSON Schema."""
        full = self.record.schema()
        inner = full | {"properties": {k: v for k, v in full["properties"].items() if k != "name"}}
        inner["required"] = [name for name in full.get("required", []) if name != "name"]
        if not inner["required"]:
            del inner["required"]
        by_name: Schema = inner
        item: Schema = full
        if self.short:
            by_name = {"anyOf": [inner, {"type": "string"}, {"type": "null"}]}
            item = {"anyOf": [full, self.name.schema()]}
        mapping = {"type": "object", "minProperties": 1, "maxProperties": self.limit, "additionalProperties": by_name}
        return {"anyOf": [mapping, {"type": "array", "minItems": 1, "maxItems": self.limit, "items": item}]}


@dataclass(frozen=True)
class Arms:
    """A backend's arms: `auto`, or labels such as `plain` and `ngram-k4`."""

    def read(self, node: Node, context: Context) -> tuple[str, ...] | str:
        """Return the labels, or `auto`."""
        if isinstance(node, Scalar) and node.text == "auto":
            return "auto"
        labels: tuple[str, ...] = ListOf(
            Text("an arm such as plain or ngram-k4", limit=80, check=_arm), 64, single=True
        ).read(node, context)
        return labels

    def schema(self) -> Schema:
        """Return the JSON Schema."""
        label = {"type": "string", "pattern": r"^(plain|[A-Za-z0-9_.-]+-k([1-9]|[1-5][0-9]|6[0-4]))$"}
        return {"anyOf": [{"const": "auto"}, label, {"type": "array", "minItems": 1, "maxItems": 64, "items": label}]}


def _arm(text: str) -> None:
    if "/" in text:
        raise ValueError("expected an arm without its backend, such as plain or ngram-k4")
    arm = Arm.parse(text, "x")
    if not re.fullmatch(NAME, arm.method, re.ASCII):
        raise ValueError("expected an arm such as plain or ngram-k4")


def make_backend_config(
    arms: tuple[str, ...] | str = "auto", url: str = "", urls: tuple[str, ...] = (), **values: Value
) -> BackendConfig:
    """Put `url` before `urls`, and give the arms their backend."""
    every = ((url,) if url else ()) + urls
    named = (
        "auto" if isinstance(arms, str) else tuple(dict.fromkeys(Arm.parse(label, values["name"]) for label in arms))
    )
    return BackendConfig(arms=named, urls=every, **values)  # type: ignore[arg-type]  # "auto" widened to str above


class Signals:
    """`signals: {tools: structured}`: of use to the classifier's training only."""

    def read(self, node: Node, context: Context) -> dict[str, str]:
        """Return signal -> task."""
        if not isinstance(node, MappingNode):
            raise context.wrong(
                node, f"signals: expected a mapping such as {{tools: structured}}, found {describe(node)}"
            )
        return {name.text: TASK.read(value, context) for name, value in node.items}

    def schema(self) -> Schema:
        """Return the JSON Schema."""
        return {"type": "object", "additionalProperties": TASK.schema()}
