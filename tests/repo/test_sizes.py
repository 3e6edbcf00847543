"""Files and functions stay small enough to be read in one go."""

from __future__ import annotations

import ast

import pytest

from tests.repo.tree import sources, text

MAX_FILE, MAX_FUNCTION = 400, 60
CODE = sources("gateway", "engine", "cli", "migrations", "benchmarks", "tests")


@pytest.mark.parametrize("name", [n for n in CODE if "/versions/" not in n])
def test_no_file_over_400_lines_and_no_function_over_60(name):
    source = text(name)
    lines = source.count("\n")
    assert lines <= MAX_FILE, f"{name} has {lines} lines"
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    long = [
        f"{name}:{node.lineno} {node.name} has {node.end_lineno - node.lineno + 1} lines"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, functions) and node.end_lineno - node.lineno + 1 > MAX_FUNCTION
    ]
    assert not long


@pytest.mark.parametrize("name", sources("gateway", "engine", "cli"))
def test_every_module_says_what_it_is_for(name):
    source = text(name)
    assert not source.strip() or ast.get_docstring(ast.parse(source)), f"{name} has no docstring"
