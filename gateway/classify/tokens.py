"""From capped text to hashed tokens, by operations on whole arrays (used by `features` and training).

A token is a run of letters, digits and marks, or one punctuation character, or one ideograph. No token is ever a Python
object: its 64-bit hash is a difference of two running sums over the text.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from gateway.classify.window import EDGE, ENDING, LIMIT, PLANE, TOGETHER, Codes

Folds = npt.NDArray[np.uint16]
Hashes = npt.NDArray[np.int64]
Places = npt.NDArray[np.intp]

_IDEOGRAPHS: Final = "\u0e00-\u0e7f\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff"
"""Each a token of its own; syllables of Hangul too, as Korean words seldom recur with the same ending."""
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
_KEPT: Final = re.compile(f"[{_SYMBOLS.replace('[', chr(92) + '[')}]")
_IDEOGRAPH: Final = re.compile(f"[{_IDEOGRAPHS}]")
_BLANK, _LETTER, _SINGLE = range(3)
_ODD: Final = np.uint8(1)
_PAIR: Final = np.int64(0x1E3779B97F4A7C15)
_BASE: Final = 0x5851F42D4C957F2D
_LONGEST: Final = TOGETHER * LIMIT
_POWERS: Final = np.multiply.accumulate(np.full(_LONGEST, _BASE, dtype=np.int64))
_INVERSES: Final = np.multiply.accumulate(np.full(_LONGEST, pow(_BASE, -1, 1 << 64), dtype=np.uint64)).view(np.int64)


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


def _scrambled() -> Hashes:
    """Return one random number for each code point, that of the blank being 0."""
    mixed = np.arange(PLANE, dtype=np.uint64)
    for factor in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB):
        mixed = (mixed ^ (mixed >> np.uint64(31))) * np.uint64(factor)
    mixed[ord(" ")] = 0
    return mixed.view(np.int64)


def _kinds() -> npt.NDArray[np.uint8]:
    kinds = np.full(PLANE, _LETTER, dtype=np.uint8)
    for found in re.finditer(r"(.)-(.)|(.)", _SYMBOLS + _IDEOGRAPHS, re.DOTALL):
        first, last, alone = found.groups()
        kinds[ord(alone or first) : ord(alone or last) + 1] = _SINGLE
    kinds[ord(" ")] = _BLANK
    return kinds


class Tokenizer:
    """Folds and splits texts."""

    def __init__(self, folds: Folds) -> None:
        self._values = _scrambled()[folds]
        self._kinds = _kinds()[folds]
        self._values[ord(EDGE)], self._kinds[ord(EDGE)] = 1, _SINGLE

    def tokens(self, codes: Codes, joints: Sequence[int] = ()) -> tuple[Places, Hashes]:
        """Return where each token begins, less one, and (token, pair of it with the next one) for each.

        The text begins with a blank and ends with an edge, which is no token. Several such texts may be read as one:
        `joints` are the places at which the second and later ones begin; the edges before them are for the caller to
        leave out.
        """
        kinds = self._kinds.take(codes, mode="clip")
        values = self._values.take(codes, mode="clip")
        # a single always begins a token, a letter where none is before it
        begins = (kinds[1:] > (kinds[:-1] & _ODD)).nonzero()[0]
        starts = begins[:-1]
        sums = np.add.accumulate(values * _POWERS[: len(codes)])[begins]
        found = np.empty((len(starts), 2), dtype=np.int64)
        words, pairs = found[:, 0], found[:, 1]
        np.multiply(sums[1:] - sums[:-1], _INVERSES[starts], out=words)
        np.multiply(words, _PAIR, out=pairs)
        if not joints:
            pairs[:-1] += words[1:]
            return starts, found
        last = starts.searchsorted(np.array(joints) - ENDING) - 1
        alone = pairs[last]  # what ends a text is in no pair with what begins the next
        pairs[:-1] += words[1:]
        pairs[last] = alone
        return starts, found
