"""Files and functions stay small enough to be read in one go."""

from __future__ import annotations

import ast

from tests.repo.tree import sources, text

MAX_FILE, MAX_FUNCTION = 400, 60
CODE = [n for n in sources("gateway", "engine", "cli", "migrations", "benchmarks", "tests") if "/versions/" not in n]
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def length(node):
    """Lines from the first decorator or `def` to the end."""
    return node.end_lineno - node.lineno + 1


def test_no_file_over_400_lines():
    long = {name: lines for name in CODE if (lines := text(name).count("\n")) > MAX_FILE}
    assert not long


def test_no_function_over_60_lines():
    long = [
        f"{name}:{node.lineno} {node.name} has {length(node)} lines"
        for name in CODE
        for node in ast.walk(ast.parse(text(name)))
        if isinstance(node, FUNCTIONS) and length(node) > MAX_FUNCTION
    ]
    assert not long


def test_every_module_says_what_it_is_for():
    spoken = {n: text(n) for n in sources("gateway", "engine", "cli")}
    silent = [n for n, source in spoken.items() if source.strip() and not ast.get_docstring(ast.parse(source))]
    assert not silent
