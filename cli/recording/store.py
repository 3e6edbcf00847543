"""The trace file that `breakeven record-traces` appends to, and picks up again after an interruption."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from types import TracebackType
from typing import Any

import click
import msgspec


class Origin(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a trace was made; the same for every line of a file."""

    model: str
    max_draft: int
    """Where drafts were cut."""
    draft_model: str | None = None
    temperature: float = 0.0


class TraceLine(msgspec.Struct, omit_defaults=True):
    """One recorded request."""

    id: str
    task: str
    classified_task: str
    prompt_tokens: int
    emitted: dict[str, list[int]]
    drafted: dict[str, list[int]]
    origin: Origin
    messages: list[dict[str, Any]] | None = None


class TraceFile:
    """Appends lines, whole ones only. A context manager."""

    def __init__(self, path: Path, origin: Origin, methods: Collection[str]) -> None:
        """Open for appending, after the last complete line. Raises ClickException naming file and line."""
        self._path = path
        self._origin = origin
        self._methods = set(methods)
        self.done: set[str] = set()
        """Ids that the file already holds."""
        try:
            kept = self._read(path.read_bytes() if path.exists() else b"")
            self._file = path.open("ab")
            self._file.truncate(kept)
        except OSError as error:
            raise click.ClickException(f"{path}: cannot be written: {error.strerror}") from error

    def _read(self, raw: bytes) -> int:
        """Take note of the lines that are there; return the length of the complete ones."""
        kept = raw.rfind(b"\n") + 1
        for number, line in enumerate(raw[:kept].splitlines(), start=1):
            if not line.strip():
                continue
            try:
                trace = msgspec.json.decode(line, type=TraceLine)
            except msgspec.MsgspecError as error:
                raise self._foreign(number, f"not a line of this command ({error})") from error
            if trace.origin != self._origin:
                raise self._foreign(number, f"made with {_words(trace.origin)}, this run has {_words(self._origin)}")
            if set(trace.emitted) != self._methods:
                has, wants = (", ".join(sorted(names)) for names in (trace.emitted, self._methods))
                raise self._foreign(number, f"has the methods {has}, this run {wants}")
            self.done.add(trace.id)
        return kept

    def _foreign(self, number: int, what: str) -> click.ClickException:
        return click.ClickException(f"{self._path}:{number}: {what}; give --out another file")

    def append(self, line: TraceLine) -> None:
        """Write one request and hand it to the system. Raises ClickException where the disk refuses."""
        try:
            self._file.write(msgspec.json.encode(line) + b"\n")
            self._file.flush()
        except OSError as error:
            raise click.ClickException(f"{self._path}: cannot be written: {error.strerror}") from error

    def __enter__(self) -> TraceFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()


def _words(origin: Origin) -> str:
    draft = f", draft {origin.draft_model}" if origin.draft_model else ""
    return f"{origin.model}{draft}, drafts cut at {origin.max_draft}, temperature {origin.temperature:g}"
