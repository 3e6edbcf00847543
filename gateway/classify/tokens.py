"""Turns capped text into folded tokens: one table look-up per character, one regular expression (used by `features`).

A token is a run of letters, digits and marks, or one punctuation character, or one ideograph.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from typing import Final

import numpy as np
import numpy.typing as npt

Folds = npt.NDArray[np.uint16]

PLANE: Final = 0x10000
"""Characters at and above this code point (emoji, rare ideographs) separate words and are not read."""
_CODEC: Final = "utf-16-le" if sys.byteorder == "little" else "utf-16-be"
_IDEOGRAPHS: Final = "\u0e00-\u0e7f\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_SYMBOLS: Final = "!-/:-@[-`{-\xbf\xd7\xf7\u2000-\u2bff\u3000-\u303f"
_OTHER: Final = "\xa4"
"""Stands for every symbol outside `_SYMBOLS`."""
_ALIKE: Final = {
    **dict.fromkeys("“”„‟«»「」『』", '"'),
    **dict.fromkeys("‘’‚‛", "'"),
    **dict.fromkeys("‐‑‒–—―", "-"),
    **dict.fromkeys("。।", "."),
    **dict.fromkeys("、،", ","),
    "؟": "?",
    "؛": ";",
}
_ASCII_TOKENS: Final = re.compile("[a-z0]+|[^ ]").findall
_TOKENS: Final = re.compile(rf"[^ {_SYMBOLS.replace('[', chr(92) + '[')}{_IDEOGRAPHS}]+|[^ ]").findall
_KEPT: Final = re.compile(f"[{_SYMBOLS.replace('[', chr(92) + '[')}]")
_IDEOGRAPH: Final = re.compile(f"[{_IDEOGRAPHS}]")


def _fold(code: int) -> int:
    char = chr(code)
    category = unicodedata.category(char)
    if category[0] in "ZC":
        return ord(" ")
    if _IDEOGRAPH.match(char):
        return code
    if category[0] == "N":
        return ord("0")
    base = unicodedata.normalize("NFKD", _ALIKE.get(char, char)).casefold()[:1]
    if category[0] in "LM":
        return ord(base) if ord(base) < PLANE else code
    return ord(base if _KEPT.match(base) else _OTHER)


def build_folds() -> Folds:
    """Fold case, accents, widths and digits of all code points of the basic plane (slow: done when training)."""
    return np.array([_fold(code) for code in range(PLANE)], dtype=np.uint16)


class Tokenizer:
    """Folds and splits texts."""

    def __init__(self, folds: Folds) -> None:
        self._folds = folds
        self._ascii = bytes(folds[:128].tolist()) * 2

    def fold(self, text: str) -> str:
        """Return `text` in lower case without accents, every digit as 0 and every blank as a space."""
        if text.isascii():
            return text.encode().translate(self._ascii).decode()
        codes = np.frombuffer(text.encode(_CODEC, "surrogatepass"), dtype=np.uint16)
        return self._folds.take(codes).tobytes().decode(_CODEC)

    @staticmethod
    def split(folded: str) -> list[str]:
        """Return the tokens of a folded text."""
        found: list[str] = _ASCII_TOKENS(folded) if folded.isascii() else _TOKENS(folded)
        return found
