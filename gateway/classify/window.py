"""The part of a prompt that is read, whatever its length: as text and as code points (first step after `prompt`)."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from gateway.classify.prompt import Prompt

HEAD: Final = 256
TAIL: Final = 160
SYSTEM: Final = 300
BEFORE: Final = 160
LIMIT: Final = HEAD + TAIL + SYSTEM + 2 * BEFORE + 10
"""No window has more characters."""
PLANE: Final = 0x10000
"""Characters at and above this code point (emoji, rare ideographs) separate words and are not read."""
EDGE: Final = "\x02"
"""Stands before, between and after the texts; a token of its own."""
OPENING: Final = 2
"""Characters before the last turn: a blank and an edge."""
ENDING: Final = 2
"""Characters that end a window: a blank and an edge."""
TOGETHER: Final = 8
"""Windows that are read as one text at most."""
Codes = npt.NDArray[np.intp]
_CODE: Final = np.dtype("<u4")


class Window(NamedTuple):
    """Both ends of the last turn, the start of the system prompt, and the starts of the turns before."""

    turn: str
    text: str
    """A blank, and each text between edges."""
    second: int
    """Where the turn ends."""
    third: int
    """Where the system prompt ends; that of the turn if there is nothing else to read."""


def codes_of(text: str) -> Codes:
    """Return a text's code points."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=_CODE).astype(np.intp)


def window_of(prompt: Prompt) -> Window:
    """Return what is read of a prompt."""
    turn = prompt.user
    if len(turn) > HEAD + TAIL:
        turn = f"{turn[:HEAD]} {turn[-TAIL:]}"
    end = OPENING + len(turn)
    if not (prompt.system or prompt.before or prompt.reply):
        return Window(turn, f" {EDGE}{turn} {EDGE}", end, end)
    system = prompt.system[:SYSTEM]
    text = f" {EDGE}{turn} {EDGE}{system} {EDGE}{prompt.before[:BEFORE]}\n{prompt.reply[:BEFORE]} {EDGE}"
    return Window(turn, text, end, end + 2 + len(system))
