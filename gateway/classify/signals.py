"""Structural facts of a prompt, read with plain string searches (no regular expression ever sees the text).

Called by `classifier` and training; the same numbers are shown to people as `Classification.signals`.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Final

import msgspec
import numpy as np

from gateway.classify.prompt import Prompt

SCAN: Final = 1_500
"""Characters at either end of the last user turn in which lines, paragraphs and fences are counted."""
MARKS: Final = 320
"""Characters at either end in which marks of code and mathematics are looked for."""
CODE_MARKS: Final = (
    "def ",
    "return ",
    "();",
    "){",
    ") {",
    "=> ",
    "->",
    "==",
    "!=",
    "&&",
    "import ",
    "#include",
    "</",
    "self.",
    ";\n",
    "{\n",
    "    ",
)
MATH_MARKS: Final = ("\\frac", "\\(", "$$", "^2", "²", "√", "∫", "≤", "≥", "\\sum", "\\int", " = ", "\\math", "%", "x^")
_RARE: Final = "\\$^²√∫≤≥#&!<>={};%()-."
Guarded = dict[str, tuple[str, ...]]


def _guarded(marks: tuple[str, ...]) -> Guarded:
    """Group marks by a character of theirs: one character is found twenty times as fast as two, and most are absent."""
    groups: Guarded = {}
    for mark in marks:
        guard = next((char for char in _RARE if char in mark), "")
        groups[guard] = (*groups.get(guard, ()), mark)
    return groups


_CODE_GROUPS: Final = _guarded(CODE_MARKS)
_MATH_GROUPS: Final = _guarded(MATH_MARKS)
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
_ITEMS: Final = ("\n- ", "\n* ", "\n1", "\n2")
_MARKED: Final = ("0123456789", "{}[]()<>=+*/;_&", ".!。।", "?？؟", '"“”„«»「」', ":：", "|")
_MARK: Final = np.zeros(0x10000, dtype=np.uint8)
for _class, _chars in enumerate(_MARKED, start=1):
    _MARK[[ord(char) for char in _chars]] = _class
_ASCII_MARK: Final = bytes(_MARK[:128].tolist()) * 2
_MARK_BYTES: Final = tuple(bytes((number,)) for number in range(1, len(_MARKED) + 1))
_NONE: Final = len(SCRIPTS)
_KANA, _HAN = SCRIPTS.index("kana"), SCRIPTS.index("han")
_ASTRAL: Final = "\U00010000"
_KIND: Final = b"".join(
    bytes((SCRIPTS.index(script) if script in SCRIPTS else _NONE,)) * (ord(after) - ord(first))
    for (first, script), (after, _) in pairwise((*_STARTS, (_ASTRAL, "none")))
)
"""Each code point's script by its place in `SCRIPTS`."""


class Structure(msgspec.Struct, frozen=True):
    """What the shape of the last user turn says, whatever its words mean."""

    chars: int
    lines: int
    paragraphs: int
    fences: int
    code_marks: int
    math_marks: int
    digits: float
    """Share of digits at the two ends."""
    symbols: float
    """Share of brackets, operators and semicolons at the two ends."""
    braces: bool
    """Whether it holds a JSON-like object."""
    asks: bool
    """Whether it ends in a question mark."""
    sentences: int
    questions: int
    quotes: int
    """Marks that open or close a quotation, at the two ends."""
    colons: int
    items: int
    """Lines of a list."""
    bars: int
    """Bars of a table, at the two ends."""
    open_end: bool
    """Whether it ends in a colon, for the answer to go on from there."""
    copyable: float
    """Share of the turn that an answer could copy: everything but the shorter instruction around a pasted text."""
    script: str


def _ends(text: str, size: int) -> str:
    return text if len(text) <= 2 * size else text[:size] + text[-size:]


def _script(edges: str) -> str:
    """Return the writing system of most sampled letters; kana wins over han, as Japanese mixes both."""
    if edges.isascii():
        return "latin"
    step = max(len(edges) // 20, 1)
    kinds = [_KIND[ord(char)] for char in edges[::step] if char < _ASTRAL]
    found = sorted({kind for kind in kinds if kind != _NONE})
    if _KANA in found and kinds.count(_KANA) * 4 >= kinds.count(_HAN) > 0:
        return "kana"
    return SCRIPTS[max(found, key=kinds.count)] if found else SCRIPTS[0]


def _copyable(text: str) -> float:
    """Return the share of `text` outside its instruction, taken to be its first or last line."""
    size = len(text)
    if size < 200:
        return 0.0
    first = text.find("\n")
    if first < 0:
        colon = text.find(": ", 0, MARKS)
        return (size - colon) / size if colon > 0 and size > 1200 else 0.0
    outside = min(first, MARKS) + min(size - text.rfind("\n"), MARKS)
    return max(0.0, 1.0 - outside / size)


def _present(groups: Guarded, edges: str) -> int:
    """Return how many of the grouped marks a text has."""
    return sum([mark in edges for guard, marks in groups.items() if guard in edges for mark in marks])


def _marks(edges: str) -> list[int]:
    """Return how many characters of each class of `_MARKED` there are, after a number that means nothing."""
    if edges.isascii():
        marked = edges.encode().translate(_ASCII_MARK)
        return [0, *map(marked.count, _MARK_BYTES)]
    codes = np.frombuffer(edges.encode("utf-32-le", "surrogatepass"), dtype="<u4")
    counts: list[int] = np.bincount(_MARK[np.minimum(codes, len(_MARK) - 1)], minlength=len(_MARKED) + 1).tolist()
    return counts


def structure_of(prompt: Prompt) -> Structure:
    """Measure the last user turn in time that is bounded whatever its length."""
    text = _ends(prompt.user, SCAN)
    edges = _ends(text, MARKS)
    size = max(len(edges), 1)
    last = edges.rstrip()[-1:]
    marks = _marks(edges)
    lines = text.count("\n")
    return Structure(
        chars=len(prompt.user),
        lines=lines + 1,
        paragraphs=text.count("\n\n") + 1 if lines > 1 else 1,
        fences=text.count("```") if "`" in text else 0,
        code_marks=_present(_CODE_GROUPS, edges),
        math_marks=_present(_MATH_GROUPS, edges),
        digits=marks[1] / size,
        symbols=marks[2] / size,
        braces="{" in edges and '":' in edges,
        asks=last in ("?", "？", "؟"),
        sentences=marks[3],
        questions=marks[4],
        quotes=marks[5],
        colons=marks[6],
        items=sum(map(edges.count, _ITEMS)) if lines else 0,
        bars=marks[7],
        open_end=last in (":", "："),
        copyable=_copyable(text),
        script=_script(edges),
    )


def flags_of(prompt: Prompt, shape: Structure) -> list[int]:
    """Return which yes-or-no facts hold, by number; the model combines them with one another and with cues."""
    facts = (
        shape.asks,
        shape.copyable > 0.3,
        shape.code_marks > 1,
        shape.digits > 0.04,
        shape.chars > 1200,
        prompt.system,
        shape.quotes > 1,
        shape.sentences > 2,
        shape.open_end,
        shape.lines > 2,
        shape.questions == 0,
    )
    return [number for number, holds in enumerate(facts) if holds]


def numbers_of(prompt: Prompt, shape: Structure) -> tuple[float, ...]:
    """Return the other structural inputs of the model, of the order of one, but for the script."""
    return (
        math.log1p(shape.chars) / 4,
        math.log1p(shape.lines) / 2,
        math.log1p(shape.paragraphs) / 2,
        min(shape.fences, 4) / 2,
        math.log1p(shape.code_marks),
        math.log1p(shape.math_marks),
        4 * shape.digits,
        4 * shape.symbols,
        float(shape.braces),
        shape.copyable,
        math.log1p(shape.sentences) / 2,
        math.log1p(shape.questions),
        math.log1p(shape.quotes) / 2,
        math.log1p(shape.colons) / 2,
        math.log1p(shape.items) / 2,
        math.log1p(shape.bars) / 2,
        float(prompt.turns > 1),
        float(bool(prompt.result)),
        float(prompt.images),
        float(bool(prompt.prediction)),
    )


FLAGS: Final = 11
NUMBERS: Final = 20
