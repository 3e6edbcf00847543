"""The list of modules in docs/architecture.md: `python -m tests.repo.modules --write` renews it from the docstrings."""

from __future__ import annotations

import ast
import sys

from tests.repo.tree import ROOT, sources, text

DOCUMENT = "docs/architecture.md"
BEGIN, END = "<!-- modules: begin -->\n", "<!-- modules: end -->"
PACKAGES = ("gateway", "engine", "cli", "migrations")


def modules() -> list[str]:
    """All modules that have something to say; packages by their `__init__`."""
    return [name for name in sources(*PACKAGES) if "/versions/" not in name and text(name).strip()]


def first_sentence(name: str) -> str:
    """A module's docstring up to its first full stop or line."""
    docstring = ast.get_docstring(ast.parse(text(name))) or ""
    return docstring.split("\n")[0].strip()


def listing() -> str:
    """The list as Markdown, a table for each top-level package."""
    lines = []
    for package in PACKAGES:
        lines += [f"### {package}", "", "| module | what it is for |", "| --- | --- |"]
        for name in modules():
            if name.split("/")[0] == package:
                shown = name.removesuffix("/__init__.py") + "/" if name.endswith("/__init__.py") else name
                lines.append(f"| `{shown}` | {first_sentence(name).replace('|', chr(92) + '|')} |")
        lines.append("")
    return "\n".join(lines)


def documented() -> str:
    """What the document says now."""
    return text(DOCUMENT).partition(BEGIN)[2].partition(END)[0]


def write() -> None:
    """Renew the list."""
    before, _, rest = text(DOCUMENT).partition(BEGIN)
    (ROOT / DOCUMENT).write_text(before + BEGIN + listing() + END + rest.partition(END)[2], encoding="utf-8")


if __name__ == "__main__":
    if "--write" in sys.argv:
        write()
    else:
        print(listing())
