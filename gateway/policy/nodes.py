"""YAML text → a tree of nodes with positions, in bounded time and memory. Called by `loader.py`; pure.

PyYAML's own composer recurses in C and builds what it is told to; this one walks the events with an explicit stack and
stops at the first thing that a policy never needs: depth, size, tags, cycles, duplicate keys, several documents.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from gateway.policy.diagnostics import Findings, Position, shorten, suggest

MAX_BYTES = 2 * 1024 * 1024
MAX_DEPTH = 24
MAX_NODES = 200_000
"""Counted with aliases expanded, so that an anchor bomb ends here."""

Event = Any
"""PyYAML's events, from either parser."""
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(slots=True)
class Scalar:
    """A single value, always as text: what it means is decided by the key it belongs to."""

    position: Position
    text: str
    plain: bool
    """Written without quotes."""
    start: int = 0
    end: int = 0
    """Offsets in the source text."""
    size: int = 1
    depth: int = 0

    @property
    def null(self) -> bool:
        """Whether nothing is written here."""
        return self.plain and self.text in ("", "~", "null")


@dataclass(slots=True)
class Sequence:
    """A list."""

    position: Position
    items: list[Node] = field(default_factory=list)
    size: int = 1
    depth: int = 1


@dataclass(slots=True)
class Mapping:
    """Keys with values; keys are unique scalars."""

    position: Position
    items: list[tuple[Scalar, Node]] = field(default_factory=list)
    size: int = 1
    depth: int = 1
    pending: Scalar | None = None
    seen: dict[str, Position] = field(default_factory=dict)

    def get(self, key: str) -> Node | None:
        """Return the value of a key, if it is there."""
        return next((value for name, value in self.items if name.text == key), None)


Node = Scalar | Sequence | Mapping


class _Stop(Exception):  # noqa: N818  # control flow, not an error of its own
    """Composition cannot go on; the finding is already noted."""


def compose(text: str, findings: Findings) -> Node | None:
    """Return the document's root, or None after noting why there is none. Never raises."""
    if len(text) > MAX_BYTES:
        findings.error(Position(1, 1), f"the file is larger than {MAX_BYTES // 1024} KiB")
        return None
    try:
        return _Composer(findings).run(yaml.parse(text, Loader=_Loader))
    except _Stop:
        return None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = Position(mark.line + 1, mark.column + 1) if mark else Position(1, 1)
        findings.error(where, f"not valid YAML: {error.problem or error.context}{_yaml_hint(error)}")
    except yaml.YAMLError as error:
        findings.error(_reader_position(text, error), f"not valid YAML: {str(error).splitlines()[0][:120]}")
    except (UnicodeError, ValueError, OverflowError, RecursionError) as error:
        findings.error(Position(1, 1), f"not valid YAML: {str(error)[:120]}")
    return None


def _yaml_hint(error: yaml.MarkedYAMLError) -> str:
    """Say in plain words what the scanner stumbled over, for its most frequent complaints."""
    problem = error.problem or ""
    if "\\t" in problem or "tab" in problem:
        return "; indent with spaces"
    if "mapping values are not allowed" in problem:
        return "; quote values that contain ': '"
    if "alias" in problem and "undefined" in problem:
        return "; quote values that begin with '*'"
    if "while scanning an alias" in (error.context or "") or "while scanning an anchor" in (error.context or ""):
        return "; quote values that begin with '*' or '&'"
    return ""


def _reader_position(text: str, error: yaml.YAMLError) -> Position:
    """Return where the reader met a character that YAML forbids."""
    offset = getattr(error, "position", None)
    if not isinstance(offset, int):
        return Position(1, 1)
    before = text[:offset]
    return Position(before.count("\n") + 1, offset - before.rfind("\n"))


class _Composer:
    """Turns events into nodes; one instance per document."""

    def __init__(self, findings: Findings) -> None:
        self.findings = findings
        self.stack: list[Sequence | Mapping] = []
        self.anchors: dict[str, Node] = {}
        self.open_anchors: set[int] = set()
        self.root: Node | None = None
        self.documents = 0
        self.nodes = 0

    def run(self, events: Iterator[Event]) -> Node | None:
        """Consume all events and return the root."""
        for event in events:
            mark = event.start_mark
            position = Position(mark.line + 1, mark.column + 1)
            self._take(event, position)
        if self.root is None:
            self._stop(Position(1, 1), "the file is empty: expected a mapping that begins with 'version: 1'")
        return self.root

    def _take(self, event: Event, position: Position) -> None:
        match event:
            case yaml.ScalarEvent():
                self._check_tag(event, position)
                self._place(_scalar(event, position), event.anchor)
            case yaml.SequenceStartEvent():
                self._check_tag(event, position)
                self._open(Sequence(position), event.anchor)
            case yaml.MappingStartEvent():
                self._check_tag(event, position)
                self._open(Mapping(position), event.anchor)
            case yaml.CollectionEndEvent():
                self._close()
            case yaml.AliasEvent():
                self._alias(event.anchor or "", position)
            case yaml.DocumentStartEvent():
                self.documents += 1
                if self.documents > 1:
                    self._stop(position, "a policy file holds one document; remove everything after '---'")

    def _stop(self, position: Position, message: str) -> None:
        self.findings.error(position, message)
        raise _Stop

    def _check_tag(self, event: Event, position: Position) -> None:
        if event.tag not in (None, "!"):
            self._stop(position, f"tags are not supported: remove {shorten(event.tag)}")

    def _count(self, size: int, position: Position) -> None:
        self.nodes += size
        if self.nodes > MAX_NODES:
            self._stop(position, f"the file has more than {MAX_NODES:,} values (aliases count each time they are used)")

    def _open(self, node: Sequence | Mapping, anchor: str | None) -> None:
        if len(self.stack) >= MAX_DEPTH:
            self._stop(node.position, f"nested more than {MAX_DEPTH} levels deep")
        self._count(1, node.position)
        if anchor is not None:
            self.anchors[anchor] = node
        self._attach(node)
        self.stack.append(node)

    def _close(self) -> None:
        node = self.stack.pop()
        if self.stack:
            parent = self.stack[-1]
            parent.size += node.size
            parent.depth = max(parent.depth, node.depth + 1)

    def _place(self, node: Scalar, anchor: str | None) -> None:
        self._count(1, node.position)
        if anchor is not None:
            self.anchors[anchor] = node
        self._attach(node)
        if self.stack:
            self.stack[-1].size += 1

    def _alias(self, name: str, position: Position) -> None:
        node = self.anchors.get(name)
        if node is None:
            self._stop(position, f"unknown alias '*{name[:40]}'; quote values that begin with '*'")
            return
        if any(node is parent for parent in self.stack):
            self._stop(position, f"alias '*{name[:40]}' contains itself")
        if len(self.stack) + node.depth > MAX_DEPTH:
            self._stop(position, f"nested more than {MAX_DEPTH} levels deep")
        self._count(node.size, position)
        self._attach(node)
        if self.stack:
            self.stack[-1].size += node.size
            self.stack[-1].depth = max(self.stack[-1].depth, node.depth + 1)

    def _attach(self, node: Node) -> None:
        if not self.stack:
            self.root = node
            return
        parent = self.stack[-1]
        if isinstance(parent, Sequence):
            parent.items.append(node)
        elif parent.pending is None:
            self._key(parent, node)
        else:
            parent.items.append((parent.pending, node))
            parent.pending = None

    def _key(self, parent: Mapping, node: Node) -> None:
        """Take a mapping's key: a scalar that was not seen before."""
        if not isinstance(node, Scalar):
            self._stop(node.position, "a key must be a single word")
            return
        if node.plain and node.text == "<<":
            self._stop(
                node.position, "merge keys ('<<') are not supported; repeat the keys or use an alias for the value"
            )
        first = parent.seen.get(node.text)
        if first is not None:
            self.findings.error(
                node.position,
                f"duplicate key {shorten(node.text)}: first given at line {first.line}; remove one of them",
            )
        parent.seen.setdefault(node.text, node.position)
        parent.pending = node


def _scalar(event: Event, position: Position) -> Scalar:
    plain = event.style in (None, "")
    return Scalar(position, event.value, plain, event.start_mark.index, event.end_mark.index)


def describe(node: Node) -> str:
    """Name a node in a message: what was found there."""
    if isinstance(node, Scalar):
        return "nothing" if node.null else shorten(node.text)
    return "a list" if isinstance(node, Sequence) else "a mapping"


def unknown_key(key: Scalar, known: list[str], findings: Findings, where: str) -> None:
    """Note a key that the language does not have."""
    findings.error(key.position, f"unknown key {shorten(key.text)} in {where}{suggest(key.text, known)}")
