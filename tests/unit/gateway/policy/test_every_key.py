"""Every key of the language takes effect somewhere, and a test shows it: docs/policies.md says where and which."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from gateway.explain import assumed_states, explain
from gateway.policy import parse_policy
from gateway.policy.kinds import ListOf, Off, Record
from gateway.policy.language import BACKENDS, CLASSIFIER, POLICY, RULE, TASKS
from gateway.policy.when import FACTS
from gateway.routing import empty_snapshot
from tests.unit.gateway.policy.test_loader import findings
from tests.unit.gateway.routing.build import request, task

ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs" / "policies.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `([a-z0-9_.]+)` \| `([\w/.]+\.py)` \| `([\w/.]+\.py)::(test_\w+)` \|$", PAGE, re.MULTILINE)


def keys(record: Record, prefix: str = "") -> list[str]:
    found: list[str] = []
    for name, key in record.keys.items():
        found.append(prefix + name)
        kind = key.kind.kind if isinstance(key.kind, Off) else key.kind
        kind = kind.kind if isinstance(kind, ListOf) else kind
        if isinstance(kind, Record) and kind is not RULE:
            found += keys(kind, f"{name}.")
    return found


def language() -> set[str]:
    named = {f"tasks.{name}" for name in keys(TASKS.record)} | {f"backends.{name}" for name in keys(BACKENDS.record)}
    classifier = {f"classifier.{name}" for name in keys(CLASSIFIER)}
    return {*keys(POLICY), *keys(RULE), *named, *classifier, *(f"when.{name}" for name in FACTS)}


@cache
def functions(path: str) -> dict[str, str]:
    """Names of the test functions of a file, with their source and that of their decorators."""
    text = (ROOT / path).read_text(encoding="utf-8")
    return {
        node.name: "\n".join(
            [*(ast.unparse(each) for each in node.decorator_list), ast.get_source_segment(text, node) or ""]
        )
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_every_key_of_the_language_is_in_the_table_once():
    assert sorted(key for key, *_ in ROWS) == sorted(language())


@pytest.mark.parametrize("key", sorted(FACTS))
def test_conditions_are_tested_by_key(key: str):
    assert f"{key}:" in functions("tests/unit/gateway/policy/test_match.py")["test_conditions"]


def test_the_tests_that_the_table_names_exist_and_check_something():
    for key, module, path, name in ROWS:
        assert (ROOT / module).is_file(), (key, module)
        assert name in functions(path), (key, path, name)
        assert re.search(r"\bassert\b|pytest\.raises|wait_until", functions(path)[name]), (key, name)


def test_the_modules_that_the_table_names_read_the_key():
    text = {module: (ROOT / module).read_text(encoding="utf-8") for _, module, *_ in ROWS}
    assert [(key, module) for key, module, *_ in ROWS if key.rpartition(".")[2] not in text[module]] == []


def test_another_version_is_refused():
    assert "p.yaml:1:10: error: " in findings("version: 2\n")[0]


def test_the_owner_is_told_with_every_explanation():
    policy = parse_policy("version: 1\nrules: [{name: mine, owner: search team}]\n", "p", env={})
    found = explain(policy, request(), task(), empty_snapshot(), assumed_states(policy, "m"), prompt_tokens=10)
    assert (found.rule, found.owner) == ("mine", "search team")
