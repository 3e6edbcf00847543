"""Errors of the simulator's input files.

InputError    a trace or cost file is wrong: `FILE:LINE: field: expected …`
"""

from __future__ import annotations


class InputError(Exception):
    """A trace or cost file cannot be used; the message begins with the file and, where known, the line."""

    def __init__(self, where: str, line: int | None, field: str, expected: str) -> None:
        place = where if line is None else f"{where}:{line}"
        super().__init__(f"{place}: {field}: {expected}" if field else f"{place}: {expected}")
