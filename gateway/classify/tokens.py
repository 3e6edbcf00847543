"""Turns capped text into token hashes with a handful of numpy calls (used by `features` and to hash the lexicon).

A token is a run of letters, digits and marks, or one punctuation character, or one ideograph. Hashes are polynomial in
the normalised code points modulo 2^64, taken from prefix sums: no Python loop runs over characters or words.
"""

from __future__ import annotations

import sys
import unicodedata
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.uint64]

SPACE, WORD, PUNCT, IDEOGRAPH = 0, 1, 2, 3
PLANE = 0x10000
"""Code points at and above this one (emoji, rare ideographs) are folded into the last one below it."""
_BASE = 0x9E3779B97F4A7C15  # odd, hence invertible modulo 2^64
_MIX = np.uint64(0xD6E8FEB86659FD93)
_SHIFT = np.uint64(32)
_BIGRAM = np.uint64(0xA24BAED4963EE407)
ORDER = 4
"""Characters in an n-gram of characters."""
_ORDER = np.uint64(ORDER)
_PLACES = np.arange(4096)
_CODEC = "utf-32-le" if sys.byteorder == "little" else "utf-32-be"
_IDEOGRAPHIC = ((0x3040, 0x30FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x0E00, 0x0E7F))


@dataclass(frozen=True, slots=True)
class CharTables:
    """What each code point below `PLANE` folds to, and its class."""

    folded: npt.NDArray[np.uint16]
    kind: npt.NDArray[np.uint8]


class Tokens(NamedTuple):
    """Token hashes of one text; `start` holds each token's first character."""

    unigrams: Hashes
    bigrams: Hashes
    start: npt.NDArray[np.intp]
    grams: Hashes
    """N-grams of `ORDER` characters."""


def _fold(code: int) -> tuple[int, int]:
    char = chr(code)
    category = unicodedata.category(char)
    if any(low <= code <= high for low, high in _IDEOGRAPHIC):
        return code, IDEOGRAPH
    if category[0] in "ZC":
        return 0, SPACE
    if category[0] == "N":
        return ord("0"), WORD
    base = unicodedata.normalize("NFKD", char)[0].casefold()
    return ord(base[0]) if ord(base[0]) < PLANE else code, WORD if category[0] in "LM" else PUNCT


def build_char_tables() -> CharTables:
    """Fold case, accents and widths and classify all code points of the basic plane (slow: done when training)."""
    rows = np.array([_fold(code) for code in range(PLANE)])
    rows[PLANE - 1] = (PLANE - 1, PUNCT)
    return CharTables(folded=np.minimum(rows[:, 0] + 1, PLANE - 1).astype(np.uint16), kind=rows[:, 1].astype(np.uint8))


def powers(count: int) -> tuple[Hashes, Hashes]:
    """Return the base's first `count` powers and their inverses modulo 2^64."""
    base = np.full(count, _BASE, dtype=np.uint64)
    inverse = np.full(count, pow(_BASE, -1, 1 << 64), dtype=np.uint64)
    base[0] = inverse[0] = 1
    return np.cumprod(base), np.cumprod(inverse)


class Tokenizer:
    """Hashes texts of up to `limit` characters; longer ones are cut."""

    def __init__(self, tables: CharTables, limit: int) -> None:
        self.limit = limit
        self._weight = tables.folded.astype(np.uint64)
        self._kind = tables.kind
        self._power, self._inverse = powers(limit + 1)

    def hash(self, text: str, grams: int = 0) -> Tokens:
        """Return the hashes of `text`'s tokens, and of the n-grams of characters that begin at its first `grams`."""
        text = text[: self.limit]
        if text.isascii():
            codes: npt.NDArray[Any] = np.frombuffer(text.encode(), dtype=np.uint8)
        else:
            codes = np.frombuffer(text.encode(_CODEC, "surrogatepass"), dtype=np.uint32)
            codes = np.minimum(codes, PLANE - 1)
        size = len(codes)
        kind = self._kind.take(codes)
        weights = self._weight.take(codes)
        weights *= self._power[:size]
        prefix = np.empty(size + 1, dtype=np.uint64)
        prefix[0] = 0
        weights.cumsum(out=prefix[1:])
        edge = np.empty(size + 1, dtype=bool)
        edge[0] = edge[-1] = True
        if size > 1:
            inner = edge[1:-1]
            np.not_equal(kind[1:], kind[:-1], out=inner)
            inner |= kind[1:] >= PUNCT
        bounds = edge.nonzero()[0]
        kept = kind.take(bounds[:-1]).nonzero()[0]  # SPACE is 0
        start = bounds.take(kept)
        kept += 1
        stop = bounds.take(kept)
        tokens = len(start)
        last = min(grams, size + 1 - ORDER)
        if last > 0:  # n-grams of characters go through the same steps: each step costs more than what it works on
            every = _PLACES[:last]
            ends = np.concatenate((stop, every + ORDER))
            starts = np.concatenate((start, every))
        else:
            ends, starts = stop, start
        hashes = prefix.take(ends)
        hashes -= prefix.take(starts)
        hashes *= self._inverse.take(starts)
        hashes[tokens:] += _ORDER
        hashes = mix(hashes)
        unigrams = hashes[:tokens]
        bigrams = unigrams[:-1] * _BIGRAM
        bigrams += unigrams[1:]
        return Tokens(unigrams, mix(bigrams), start, hashes[tokens:])


def mix(values: Hashes) -> Hashes:
    """Spread each hash's information over its high bits."""
    mixed = values >> _SHIFT
    mixed ^= values
    mixed *= _MIX
    mixed ^= mixed >> _SHIFT
    return mixed
