"""Files of expected decisions: the tests of a policy, read with positions like the policy itself. Pure.

Run by `breakeven policy test`; `policies/tests/` shows what they look like.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from gateway.errors import PolicyError
from gateway.policy import nodes
from gateway.policy.diagnostics import Findings, Position
from gateway.policy.kinds import (
    Choice,
    Context,
    Flag,
    Key,
    ListOf,
    Quantity,
    Record,
    Schema,
    Text,
    Value,
    Wrong,
    share,
    whole,
)
from gateway.policy.plain import to_plain
from gateway.policy.values import ARM_PATTERN, TASK, matching


class Expected(msgspec.Struct, frozen=True):
    """What must come out; a key that is absent is not looked at."""

    rule: str | None = None
    task: str | None = None
    arm: str | None = None
    path: str | None = None
    state: str | None = None
    owner: str | None = None
    allows: tuple[str, ...] = ()
    """Arms that must be allowed."""
    denies: tuple[str, ...] = ()
    """Arms that must not be allowed."""
    observes: tuple[str, ...] = ()
    """Rules in mode observe that must hold."""
    veto: str | None = None
    """Text that must occur among the vetoes."""
    refused: bool | None = None
    """Whether the client must get an error."""


class Case(msgspec.Struct, frozen=True):
    """One request and what is expected of it."""

    name: str
    line: int
    request: dict[str, Any]
    around: dict[str, Any]
    """`Circumstances` in JSON values."""
    expect: Expected


class Suite(msgspec.Struct, frozen=True):
    """One file."""

    policy: str
    """The policy's file, relative to this one."""
    cases: tuple[Case, ...]


@dataclass(frozen=True)
class _Body:
    """An OpenAI request body, as it is; or a text, short for one user message."""

    def read(self, node: nodes.Node, context: Context) -> dict[str, Any]:
        """Return the body."""
        if isinstance(node, nodes.Scalar) and not node.null:
            return {"messages": [{"role": "user", "content": node.text}]}
        if not isinstance(node, nodes.Mapping):
            raise context.wrong(node, f"request: expected an OpenAI body or a prompt, found {nodes.describe(node)}")
        body = to_plain(node)
        assert isinstance(body, dict)  # noqa: S101  # a mapping node becomes a dict
        return body

    def schema(self) -> Schema:
        """Return the JSON Schema."""
        return {"type": ["object", "string"]}


@dataclass(frozen=True)
class _Headers:
    """Names and values."""

    def read(self, node: nodes.Node, context: Context) -> dict[str, str]:
        """Return the headers in lower case."""
        if not isinstance(node, nodes.Mapping):
            raise context.wrong(node, f"header: expected names with values, found {nodes.describe(node)}")
        return {name.text.lower(): Text("a value").read(value, context) for name, value in node.items}

    def schema(self) -> Schema:
        """Return the JSON Schema."""
        return {"type": "object", "additionalProperties": {"type": "string"}}


def _moment(text: str) -> float:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("expected a time such as 2026-07-03T09:30+02:00") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


_WORD = Text("a text", limit=200)
_WITH = Record(
    "with",
    dict,
    {
        "task": Key(TASK, "as if declared"),
        "app": Key(_WORD, "the API key's name"),
        "key": Key(_WORD, "the API key's id"),
        "path": Key(Choice(("auto", "plain", "speculative")), "as if wished for by x-breakeven-path"),
        "header": Key(_Headers(), "request headers"),
        "load": Key(whole(0, 1_000_000), "sequences running on the backends"),
        "prompt_tokens": Key(whole(0, 100_000_000), "length of the prompt"),
        "share": Key(share(), "the conversation's place"),
        "time": Key(Quantity(_moment, 0, 1e11, {"type": "string"}), "time of arrival, ISO 8601", into="at"),
    },
)
_EXPECT = Record(
    "expect",
    Expected,
    {
        "rule": Key(_WORD, "name of the rule that applies"),
        "task": Key(TASK, "task it is taken for"),
        "arm": Key(_WORD, "arm taken"),
        "path": Key(Choice(("plain", "speculative")), "path taken"),
        "state": Key(_WORD, "state of the decision"),
        "owner": Key(_WORD, "owner of the rule"),
        "allows": Key(ListOf(ARM_PATTERN, single=True), "arms that the rule must allow"),
        "denies": Key(ListOf(ARM_PATTERN, single=True), "arms that it must not allow"),
        "observes": Key(ListOf(_WORD, single=True), "rules in mode observe that hold"),
        "veto": Key(_WORD, "text that occurs among the vetoes"),
        "refused": Key(Flag(), "whether the client gets an error"),
    },
)


def _case(
    node: nodes.Node, name: str, request: dict[str, Any], expect: Expected, around: Mapping[str, Value] | None = None
) -> Case:
    return Case(name, node.position.line, request, dict(around or {}), expect)


_CASE = Record(
    "test",
    _case,
    {
        "name": Key(Text("a name", limit=200), "what the report calls it", required=True),
        "request": Key(_Body(), "OpenAI request body, or a prompt", required=True),
        "with": Key(_WITH, "what the body does not say", into="around"),
        "expect": Key(_EXPECT, "what must come out", required=True),
    },
    positions=True,
)
_FILE = matching(r"[^/\0][^\0]{0,300}", "a file relative to this one")
SUITE = Record(
    "tests file",
    lambda policy, tests, **_: Suite(policy, tests),
    {
        "version": Key(whole(1, 1), "1", required=True),
        "policy": Key(_FILE, "the policy under test, relative to this file", required=True),
        "tests": Key(ListOf(_CASE, 10_000), "the tests", required=True),
    },
)


def parse_expectations(text: str, name: str) -> Suite:
    """Read a file of expected decisions. Raises PolicyError."""
    findings = Findings(name)
    root = nodes.compose(text, findings)
    if root is None:
        raise PolicyError(findings.lines())
    try:
        suite: Suite = SUITE.read(root, Context(findings, {}))
    except Wrong:
        raise PolicyError(findings.lines()) from None
    for case in suite.cases:
        if case.expect == Expected():
            findings.error(Position(case.line, 1), "expect: expected at least one key")
    findings.raise_if_failed()
    return suite
