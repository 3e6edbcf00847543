"""YAML text → a tree of nodes with positions, in bounded time and memory. Called by `loader.py`; pure.

PyYAML's own composer recurses in C and builds what it is told to; this one walks the events with an explicit stack and
stops at the first thing that a policy never needs: depth, size, tags, cycles, duplicate keys, several documents.
"""

from __future__ import annotations

from typing import Any, NoReturn

import yaml

from gateway.policy.diagnostics import Findings, Position, shorten, suggest

MAX_BYTES = 2 * 1024 * 1024
MAX_DEPTH = 24
MAX_NODES = 200_000
"""Counted with aliases expanded, so that an anchor bomb ends here."""

Event = Any
Loader = Any
"""PyYAML's, in C or in Python."""
Mark = Any
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Placed:
    """Base of all nodes: where it begins, and how much hangs below it."""

    __slots__ = ("mark",)
    size = 1
    depth = 0

    def __init__(self, mark: Mark) -> None:
        self.mark = mark
        """The parser's: line and column from 0, offset in the text. Kept as it is, since few are ever looked at."""

    @property
    def position(self) -> Position:
        """Line and column, from 1."""
        return Position(self.mark.line + 1, self.mark.column + 1)


class Scalar(_Placed):
    """A single value, always as text: what it means is decided by the key it belongs to."""

    __slots__ = ("end_mark", "plain", "text")

    def __init__(self, mark: Mark, text: str, plain: bool = True, end_mark: Mark = None) -> None:
        self.mark = mark
        self.text = text
        self.plain = plain
        """Written without quotes."""
        self.end_mark = end_mark

    @property
    def span(self) -> slice:
        """Where it stands in the source text."""
        return slice(self.mark.index, self.end_mark.index)

    @property
    def null(self) -> bool:
        """Whether nothing is written here."""
        return self.plain and self.text in ("", "~", "null")


class Sequence(_Placed):
    """A list."""

    __slots__ = ("depth", "items", "size")

    def __init__(self, mark: Mark, items: list[Node] | None = None) -> None:
        super().__init__(mark)
        self.items = items or []
        self.size = 1
        self.depth = 1


class Mapping(_Placed):
    """Keys with values; keys are unique scalars."""

    __slots__ = ("by_key", "depth", "items", "pending", "size")

    def __init__(self, mark: Mark, items: list[tuple[Scalar, Node]] | None = None) -> None:
        super().__init__(mark)
        self.items = items or []
        self.by_key: dict[str, Scalar] = {}
        """Keys seen so far while composing."""
        self.pending: Scalar | None = None
        """The key whose value comes next."""
        self.size = 1
        self.depth = 1

    def get(self, key: str) -> Node | None:
        """Return the value of a key, if it is there."""
        return next((value for name, value in self.items if name.text == key), None)


Node = Scalar | Sequence | Mapping


class _Stop(Exception):  # control flow, not an error of its own
    """Composition cannot go on; the finding is already noted."""


def compose(text: str, findings: Findings) -> Node | None:
    """Return the document's root, or None after noting why there is none. Never raises."""
    if len(text) > MAX_BYTES:
        findings.error(Position(1, 1), f"the file is larger than {MAX_BYTES // 1024} KiB")
        return None
    try:
        return _Composer(findings).run(_Loader(text))
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
        self.root: Node | None = None
        self.documents = 0
        self.nodes = 0

    def run(self, loader: Loader) -> Node | None:
        """Consume all events and return the root."""
        take = {
            yaml.ScalarEvent: self._scalar,
            yaml.SequenceStartEvent: lambda event: self._open(Sequence(event.start_mark), event),
            yaml.MappingStartEvent: lambda event: self._open(Mapping(event.start_mark), event),
            yaml.SequenceEndEvent: self._close,
            yaml.MappingEndEvent: self._close,
            yaml.AliasEvent: self._alias,
            yaml.DocumentStartEvent: self._document,
        }
        get, handler_of = loader.get_event, take.get
        while True:
            event = get()
            handler = handler_of(type(event))
            if handler is not None:
                handler(event)
            elif type(event) is yaml.StreamEndEvent:
                break
        if self.root is None:
            self._stop(Position(1, 1), "the file is empty: expected a mapping that begins with 'version: 1'")
        return self.root

    def _document(self, event: Event) -> None:
        self.documents += 1
        if self.documents > 1:
            self._stop(_at(event), "a policy file holds one document; remove everything after '---'")

    def _scalar(self, event: Event) -> None:
        node = Scalar(event.start_mark, event.value, not event.style, event.end_mark)
        if event.tag is not None:
            self._refuse_tag(event)
        if event.anchor is not None:
            self.anchors[event.anchor] = node
        self.nodes += 1
        if self.nodes > MAX_NODES:
            self._too_many(event)
        self._attach(node, 1)

    def _stop(self, position: Position, message: str) -> NoReturn:
        self.findings.error(position, message)
        raise _Stop

    def _too_many(self, event: Event) -> NoReturn:
        self._stop(_at(event), f"the file has more than {MAX_NODES:,} values (aliases count each time they are used)")

    def _refuse_tag(self, event: Event) -> None:
        if event.tag not in (None, "!"):
            self._stop(_at(event), f"tags are not supported: remove {shorten(event.tag)}")

    def _open(self, node: Sequence | Mapping, event: Event) -> None:
        self._refuse_tag(event)
        if len(self.stack) >= MAX_DEPTH:
            self._stop(node.position, f"nested more than {MAX_DEPTH} levels deep")
        self.nodes += 1
        if self.nodes > MAX_NODES:
            self._too_many(event)
        if event.anchor is not None:
            self.anchors[event.anchor] = node
        self._attach(node, 0)
        self.stack.append(node)

    def _close(self, _: Event) -> None:
        node = self.stack.pop()
        if self.stack:
            parent = self.stack[-1]
            parent.size += node.size
            parent.depth = max(parent.depth, node.depth + 1)

    def _alias(self, event: Event) -> None:
        name, at = event.anchor or "", _at(event)
        node = self.anchors.get(name)
        if node is None:
            self._stop(at, f"unknown alias {shorten('*' + name)}; quote values that begin with '*'")
        if any(node is parent for parent in self.stack):
            self._stop(at, f"alias {shorten('*' + name)} contains itself")
        if len(self.stack) + node.depth > MAX_DEPTH:
            self._stop(at, f"nested more than {MAX_DEPTH} levels deep")
        self.nodes += node.size
        if self.nodes > MAX_NODES:
            self._too_many(event)
        self._attach(node, node.size)
        if self.stack:
            self.stack[-1].depth = max(self.stack[-1].depth, node.depth + 1)

    def _attach(self, node: Node, size: int) -> None:
        """Put a node into the open collection; `size` values are complete with it."""
        if not self.stack:
            self.root = node
            return
        parent = self.stack[-1]
        parent.size += size
        if type(parent) is Mapping:
            if parent.pending is None:
                self._key(parent, node)
            else:
                parent.items.append((parent.pending, node))
                parent.pending = None
        elif isinstance(parent, Sequence):
            parent.items.append(node)

    def _key(self, parent: Mapping, node: Node) -> None:
        """Take a mapping's key: a scalar that was not seen before."""
        if not isinstance(node, Scalar):
            self._stop(node.position, "a key must be a single word")
        if node.text == "<<" and node.plain:
            self._stop(
                node.position, "merge keys ('<<') are not supported; repeat the keys or use an alias for the value"
            )
        first = parent.by_key.get(node.text)
        if first is None:
            parent.by_key[node.text] = node
        else:
            place = f"first given at line {first.position.line}; remove one of them"
            self.findings.error(node.position, f"duplicate key {shorten(node.text)}: {place}")
        parent.pending = node


def _at(event: Event) -> Position:
    return Position(event.start_mark.line + 1, event.start_mark.column + 1)


def describe(node: Node) -> str:
    """Name a node in a message: what was found there."""
    if isinstance(node, Scalar):
        return "nothing" if node.null else shorten(node.text)
    return "a list" if isinstance(node, Sequence) else "a mapping"


def unknown_key(key: Scalar, known: list[str], findings: Findings, where: str) -> None:
    """Note a key that the language does not have."""
    hint = "" if findings.full else suggest(key.text, known)
    findings.error(key.position, f"unknown key {shorten(key.text)} in {where}{hint}")
