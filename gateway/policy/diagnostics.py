"""Findings about a policy file, in the form `FILE:LINE:COL: error: …`, and the suggestions that go with them. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Literal, NamedTuple

from gateway.errors import PolicyError

MAX_FINDINGS = 100
"""Later ones are counted, not kept."""


class Position(NamedTuple):
    """Line and column, both from 1."""

    line: int
    column: int


class Finding(NamedTuple):
    """One error or warning."""

    position: Position
    level: Literal["error", "warning"]
    message: str

    def render(self, name: str) -> str:
        """Return `FILE:LINE:COL: level: message`."""
        return f"{name}:{self.position.line}:{self.position.column}: {self.level}: {self.message}"


class Findings:
    """Collects what is wrong with one file, so that a reader sees everything at once."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._found: list[Finding] = []
        self._dropped = 0
        self.failed = False

    @property
    def full(self) -> bool:
        """Whether further findings are only counted."""
        return len(self._found) >= MAX_FINDINGS

    def error(self, position: Position, message: str) -> None:
        """Note something that makes the policy unusable."""
        self.failed = True
        self._add(Finding(position, "error", message))

    def warning(self, position: Position, message: str) -> None:
        """Note something that is probably not meant."""
        self._add(Finding(position, "warning", message))

    def _add(self, finding: Finding) -> None:
        if len(self._found) < MAX_FINDINGS:
            self._found.append(finding)
        else:
            self._dropped += 1

    def lines(self) -> list[str]:
        """Return all findings, in the order of the file."""
        found = [finding.render(self.name) for finding in sorted(self._found)]
        if self._dropped:
            found.append(f"{self.name}:1:1: warning: {self._dropped} more findings are not shown")
        return found

    def raise_if_failed(self) -> None:
        """Raise PolicyError with everything found, if there is an error among it."""
        if self.failed:
            raise PolicyError(self.lines())


def shorten(text: str, limit: int = 40) -> str:
    """Quote a piece of the file for a message: printable and bounded."""
    quoted = ascii(text[: limit + 1])[1:-1]
    return f"'{quoted[:limit]}…'" if len(text) > limit else f"'{quoted}'"


def suggest(word: str, known: Iterable[str]) -> str:
    """Return ` (did you mean 'x'?)`, or what is known where nothing is close."""
    choices = list(known)
    close = get_close_matches(word[:64].lower().replace("-", "_"), choices, n=1, cutoff=0.6)
    close = close or get_close_matches(word[:64], choices, n=1, cutoff=0.6)
    if close:
        return f" (did you mean '{close[0]}'?)"
    return f" (expected one of: {', '.join(choices[:24])})" if choices else ""
