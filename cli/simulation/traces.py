"""Acceptance traces: one JSON request a line. Read by the simulator; written by `breakeven record-traces`.

`emitted[method][i]` is what a round that starts at output position i would emit with an unlimited draft (accepted + 1);
the list is as long as the output. `drafted[method][i]`, where given, is how many tokens the drafter proposes there.
`application`, where given, is told to the decision besides the task.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from cli.simulation.errors import InputError

LARGEST = 1 << 20
"""No count in a trace may be larger: such a file is not a trace."""


class Trace(msgspec.Struct, frozen=True):
    """One recorded request, for one method."""

    id: str
    task: str
    """The true task: requests are drawn and oracles choose by it."""
    seen_task: str
    """The task that the controller is told: `classified_task` where the file gives it."""
    prompt_tokens: int
    emitted: tuple[int, ...]
    drafted: tuple[int, ...] | None
    application: str = ""
    """Which application of its task it comes from, where the file tells."""


def read_traces(path: Path, method: str, cap: int) -> list[Trace]:
    """Return the requests of a trace file, outputs cut at `cap`. Raises InputError naming file, line and field."""
    try:
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise InputError(str(path), None, "", f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(str(path), None, "", f"expected UTF-8 text ({error.reason} at byte {error.start})") from error
    traces = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            traces.append(_trace(line, str(path), number, method, cap))
    if not traces:
        raise InputError(str(path), None, "", "expected at least one request, found none")
    return traces


def _trace(line: str, where: str, number: int, method: str, cap: int) -> Trace:
    try:
        row = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError(where, number, "", f"expected one JSON object a line ({error})") from error
    if not isinstance(row, dict):
        raise InputError(where, number, "", "expected one JSON object a line")
    task = _text(row, "task", where, number)
    emitted = _counts(row, "emitted", method, where, number)
    if emitted is None:
        found = ", ".join(sorted(row["emitted"])) or "none"
        raise InputError(where, number, f"emitted.{method}", f"expected a list for this method (methods here: {found})")
    if min(emitted, default=0) < 1:
        raise InputError(where, number, f"emitted.{method}", "expected at least one number, each at least 1")
    drafted = _counts(row, "drafted", method, where, number) if row.get("drafted") is not None else None
    if drafted is not None and len(drafted) != len(emitted):
        raise InputError(
            where, number, f"drafted.{method}", f"expected {len(emitted)} numbers as in emitted, found {len(drafted)}"
        )
    prompt = row.get("prompt_tokens")
    if not isinstance(prompt, int) or isinstance(prompt, bool) or not 0 <= prompt <= LARGEST:
        raise InputError(where, number, "prompt_tokens", f"expected a whole number from 0 to {LARGEST}")
    seen = row.get("classified_task")
    if seen is not None and (not isinstance(seen, str) or not seen):
        raise InputError(where, number, "classified_task", "expected a non-empty string")
    return Trace(
        id=str(row.get("id", number)),
        task=task,
        seen_task=seen or task,
        prompt_tokens=prompt,
        emitted=tuple(emitted[:cap]),
        drafted=None if drafted is None else tuple(drafted[:cap]),
        application=_text(row, "application", where, number) if row.get("application") is not None else "",
    )


def _text(row: dict[str, Any], field: str, where: str, number: int) -> str:
    value = row.get(field)
    if not isinstance(value, str) or not value:
        raise InputError(where, number, field, "expected a non-empty string")
    return value


def _counts(row: dict[str, Any], field: str, method: str, where: str, number: int) -> list[int] | None:
    """Return the list of one method, None where the method is absent."""
    by_method = row.get(field)
    if not isinstance(by_method, dict):
        raise InputError(where, number, field, "expected an object from method to list of whole numbers")
    values = by_method.get(method)
    if values is None:
        return None
    fine = isinstance(values, list) and all(type(value) is int and 0 <= value <= LARGEST for value in values)
    if not fine:
        raise InputError(where, number, f"{field}.{method}", f"expected a list of whole numbers from 0 to {LARGEST}")
    counts: list[int] = values
    return counts
