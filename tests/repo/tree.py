"""What the repository tests look at: tracked files, and files about to be."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@cache
def files() -> tuple[str, ...]:
    """All files that git tracks or would take, as paths relative to the root."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return tuple(sorted(name for name in listed.stdout.splitlines() if (ROOT / name).is_file()))


def sources(*tops: str) -> list[str]:
    """The Python files below these top-level folders."""
    return [name for name in files() if name.endswith(".py") and name.split("/")[0] in tops]


def text(name: str) -> str:
    """A tracked file's text."""
    return (ROOT / name).read_text(encoding="utf-8")
