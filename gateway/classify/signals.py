"""Structural facts of a prompt: how often each class of characters occurs, and a few marks looked for.

Called by `classifier` and training; the same numbers are shown to people as `Classification.signals`.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from gateway.classify.prompt import Prompt
from gateway.classify.window import OPENING, PLANE, Codes, Window

SPAN: Final = 3_000
"""A turn longer than this counts as so long where shares of it are worked out."""
LINE: Final = 320
"""No first or last line is taken for a longer instruction."""
SCRIPTS: Final = (
    "latin",
    "greek",
    "cyrillic",
    "hebrew",
    "arabic",
    "devanagari",
    "indic",
    "thai",
    "hangul",
    "kana",
    "han",
    "other",
)
_STARTS: Final = (
    ("\x00", "none"),
    ("A", "latin"),
    ("[", "none"),
    ("a", "latin"),
    ("{", "none"),
    ("ª", "latin"),
    ("Ͱ", "greek"),
    ("Ѐ", "cyrillic"),
    ("\u0530", "other"),
    ("\u0590", "hebrew"),
    ("\u0600", "arabic"),
    ("\u0900", "devanagari"),
    ("\u0980", "indic"),
    ("\u0e00", "thai"),
    ("\u0e80", "other"),
    ("\u1100", "hangul"),
    ("\u1200", "other"),
    ("\u1e00", "latin"),
    ("\u2000", "none"),
    ("\u3040", "kana"),
    ("\u3100", "other"),
    ("\u3130", "hangul"),
    ("\u3190", "other"),
    ("\u3400", "han"),
    ("\ua000", "other"),
    ("\uac00", "hangul"),
    ("\ud800", "none"),
)
_ITEMS: Final = ("- ", "* ", "1", "2")
_INDENTS: Final = ("    ", "\t")
_ENDINGS: Final = (";", "{", "}", ");", "):")
_CLASSES: Final = (
    "0123456789",
    "{}[]()<>=+*/;_&!-",
    ".。।",
    "?？؟",
    '"“”„«»「」',
    ":：",
    "|",
    "\\$^²³√∫∑∏≤≥≠±×÷∈∞∀∃→⇒%",
    "`",
)
_NONE, _DIGIT, _SYMBOL, _STOP, _QUESTION, _QUOTE, _COLON, _BAR, _SIGN, _TICK, _LETTERS = range(11)
"""Classes of characters; letters have one for each script, from the last number on."""
_KANA, _HAN = SCRIPTS.index("kana"), SCRIPTS.index("han")


def _classes() -> npt.NDArray[np.intp]:
    classes = np.zeros(PLANE, dtype=np.intp)
    for (first, script), (after, _) in pairwise((*_STARTS, (chr(PLANE), "none"))):
        if script != "none":
            classes[ord(first) : ord(after)] = _LETTERS + SCRIPTS.index(script)
    for number, chars in enumerate(_CLASSES, start=1):
        classes[[ord(char) for char in chars]] = number
    return classes


_CLASS: Final = _classes()
_SORTS: Final = _LETTERS + len(SCRIPTS)


class Structure(msgspec.Struct, frozen=True):
    """What the shape of the last user turn says, whatever its words mean; all but its length by what is read of it."""

    chars: int
    lines: int
    paragraphs: int
    fences: int
    code_marks: int
    math_marks: int
    digits: float
    """Share of digits in what is read."""
    symbols: float
    """Share of brackets, operators and semicolons in what is read."""
    braces: bool
    """Whether it holds a JSON-like object."""
    asks: bool
    """Whether it ends in a question mark."""
    sentences: int
    questions: int
    quotes: int
    """Marks that open or close a quotation."""
    colons: int
    items: int
    """Lines of a list."""
    bars: int
    """Bars of a table."""
    open_end: bool
    """Whether it ends in a colon, for the answer to go on from there."""
    copyable: float
    """Share of the turn that an answer could copy: everything but the shorter instruction around a pasted text."""
    script: str


def _script(letters: list[int]) -> str:
    """Return the writing system of most letters; kana wins over han, as Japanese mixes both."""
    if letters[_KANA] * 4 >= letters[_HAN] > 0 < letters[_KANA]:
        return "kana"
    return SCRIPTS[letters.index(max(letters))]


def _copyable(text: str, chars: int, rows: list[str]) -> float:
    """Return the share of the turn outside its instruction, taken to be its first or last line."""
    if chars < 200:
        return 0.0
    size = min(chars, SPAN)
    if len(rows) == 1:
        colon = text.find(": ", 0, LINE)
        return (size - colon) / size if colon > 0 and size > 1200 else 0.0
    outside = min(len(rows[0]), LINE) + min(len(rows[-1]) + 1, LINE)
    return max(0.0, 1.0 - outside / size)


def _code_marks(rows: list[str], symbols: npt.NDArray[np.bool_]) -> int:
    """Count symbols that follow one another, and lines that are indented or end as in programs."""
    adjacent = int(np.count_nonzero(symbols[1:] & symbols[:-1]))
    return adjacent + sum([row.startswith(_INDENTS) + row.endswith(_ENDINGS) for row in rows[1:]])


def structure_of(prompt: Prompt, window: Window, codes: Codes) -> Structure:
    """Measure what is read of the last user turn; `codes` are the window's code points."""
    text, chars = window.turn, len(prompt.user)
    classes = _CLASS.take(codes[OPENING : OPENING + len(text)], mode="clip")
    counts = np.bincount(classes, minlength=_SORTS).tolist()
    size, rows = max(len(text), 1), text.split("\n")
    last = text[-40:].rstrip()[-1:]
    return Structure(
        chars=chars,
        lines=len(rows),
        paragraphs=rows.count("") + 1,
        fences=text.count("```") if counts[_TICK] > 2 else 0,
        code_marks=_code_marks(rows, classes == _SYMBOL) if counts[_SYMBOL] > 1 else 0,
        math_marks=counts[_SIGN],
        digits=counts[_DIGIT] / size,
        symbols=counts[_SYMBOL] / size,
        braces=counts[_SYMBOL] > 1 and "{" in text and '":' in text,
        asks=last in ("?", "？", "؟"),
        sentences=counts[_STOP],
        questions=counts[_QUESTION],
        quotes=counts[_QUOTE],
        colons=counts[_COLON],
        items=sum([row.startswith(_ITEMS) for row in rows[1:]]),
        bars=counts[_BAR],
        open_end=last in (":", "："),
        copyable=_copyable(text, chars, rows),
        script=_script(counts[_LETTERS:]),
    )


def facts_key(prompt: Prompt) -> tuple[object, ...]:
    """Return all that `structure_of` and `facts_of` read of a prompt beside its window, as far as it matters."""
    return len(prompt.user), prompt.turns > 1, bool(prompt.result), prompt.images, bool(prompt.prediction)


def facts_of(prompt: Prompt, shape: Structure) -> tuple[float, ...]:
    """Return the model's structural inputs but for the script: `NUMBERS` of the order of one, then `FLAGS` flags."""
    return (
        math.log1p(shape.chars) / 4,
        math.log1p(shape.lines) / 2,
        math.log1p(shape.paragraphs) / 2,
        min(shape.fences, 4) / 2,
        math.log1p(shape.code_marks),
        math.log1p(shape.math_marks),
        4 * shape.digits,
        4 * shape.symbols,
        shape.braces,
        shape.copyable,
        math.log1p(shape.sentences) / 2,
        math.log1p(shape.questions),
        math.log1p(shape.quotes) / 2,
        math.log1p(shape.colons) / 2,
        math.log1p(shape.items) / 2,
        math.log1p(shape.bars) / 2,
        prompt.turns > 1,
        bool(prompt.result),
        prompt.images,
        bool(prompt.prediction),
        shape.asks,
        shape.copyable > 0.3,
        shape.code_marks > 1,
        shape.digits > 0.04,
        shape.chars > 1200,
        bool(prompt.system),
        shape.quotes > 1,
        shape.sentences > 2,
        shape.open_end,
        shape.lines > 2,
        shape.questions == 0,
    )


NUMBERS: Final = 20
FLAGS: Final = 11
"""Yes-or-no facts, which the model combines with one another and with cues."""
