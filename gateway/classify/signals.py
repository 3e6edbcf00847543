"""Structural facts of a prompt, read with plain string searches (no regular expression ever sees the whole text).

Called by `features`; the same numbers are shown to people as `Classification.signals`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gateway.classify.prompt import Prompt

SCAN: Final = 16_000
"""Characters at either end of the last user turn in which marks are counted."""
EDGE: Final = 400
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
MATH_MARKS: Final = (
    "\\frac",
    "\\(",
    "$$",
    "^2",
    "²",
    "√",
    "∫",
    "≤",
    "≥",
    "\\sum",
    "\\int",
    " = ",
    "\\mathbb",
    "\\times",
    "%",
    "x^",
)
SCRIPTS: Final = (
    ("latin", "A", "ɏ"),
    ("greek", "Ͱ", "Ͽ"),
    ("cyrillic", "Ѐ", "ӿ"),
    ("hebrew", "֐", "׿"),
    ("arabic", "؀", "ۿ"),
    ("devanagari", "ऀ", "ॿ"),
    ("bengali", "ঀ", "৿"),
    ("thai", "\u0e00", "\u0e7f"),
    ("kana", "\u3040", "\u30ff"),
    ("han", "一", "鿿"),
    ("hangul", "가", "힣"),
)


@dataclass(frozen=True, slots=True)
class Structure:
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
    copyable: float
    """Share of the turn that an answer could copy: everything but the shorter instruction around a pasted text."""
    script: str


def _ends(text: str) -> str:
    return text if len(text) <= 2 * SCAN else text[:SCAN] + text[-SCAN:]


def _script(text: str) -> str:
    """Return the writing system of most sampled letters: kana wins over han, as Japanese mixes both."""
    if text.isascii():
        return "latin" if text else "none"
    counts: dict[str, int] = {}
    for char in text[:EDGE:6]:
        if char.isalpha():
            name = next((name for name, low, high in SCRIPTS if low <= char <= high), "other")
            counts[name] = counts.get(name, 0) + 1
    if not counts:
        return "none"
    if counts.get("kana", 0) * 4 >= counts.get("han", 0) > 0:
        return "kana"
    return max(counts, key=lambda name: (counts[name], name))


def _copyable(text: str) -> float:
    """Return the share of `text` outside its instruction, taken to be its first or last line."""
    if len(text) < 200:
        return 0.0
    first = text.find("\n")
    last = text.rfind("\n")
    if first < 0:
        colon = text.find(": ", 0, EDGE)
        return (len(text) - colon) / len(text) if colon > 0 and len(text) > 3 * EDGE else 0.0
    outside = min(first, EDGE) + min(len(text) - last, EDGE)
    return max(0.0, 1.0 - outside / len(text))


def structure_of(prompt: Prompt) -> Structure:
    """Measure the last user turn in time that is bounded whatever its length."""
    text = _ends(prompt.user)
    edges = text if len(text) <= 2 * EDGE else text[:EDGE] + text[-EDGE:]
    size = max(len(edges), 1)
    return Structure(
        chars=len(prompt.user),
        lines=text.count("\n") + 1,
        paragraphs=text.count("\n\n") + 1,
        fences=text.count("```"),
        code_marks=sum(mark in text for mark in CODE_MARKS),
        math_marks=sum(mark in edges for mark in MATH_MARKS),
        digits=sum(map(edges.count, "0123456789")) / size,
        symbols=sum(map(edges.count, "{}[]()<>=+*/;_|&")) / size,
        braces="{" in text and '":' in text,
        asks=edges.rstrip()[-1:] in ("?", "？", "؟"),
        copyable=_copyable(text),
        script=_script(edges),
    )
