"""What the text model knows by heart: words, pairs of them, and which of them are cues (built when training).

Look-ups in dictionaries of what has a weight beat hashing everything: nothing is computed for what has none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

MOST: Final = 1 << 20
"""More words than there can be."""
SHORTEST: Final = 5
STEM: Final = 6
"""Letters that a word must have, and that its beginning has, to be taken for one that it is like."""
ARRAYS: Final = ("words", "pairs", "word_cue", "pair_cue", "threes")


@dataclass(frozen=True)
class Vocabulary:
    """Entries by number; number 0 stands for everything unknown."""

    words: dict[str, int]
    pairs: dict[int, int]
    """First word's number times `MOST` plus the second's → the pair's number."""
    word_cue: list[int]
    """By a word's number: its cue class plus one, or 0."""
    pair_cue: list[int]
    threes: dict[tuple[int, int], int]
    """(First pair's number, third word's number) → cue class plus one."""

    def numbers(self, tokens: Sequence[str]) -> list[int]:
        """Return the numbers of the tokens; a word that is unknown counts as the cue word that it is like."""
        known, near = self.words.get, self.near
        return [known(token) or near(token) for token in tokens]

    def near(self, token: str) -> int:
        """Return the number of a cue word with the same beginning, or the same letters in another order, else 0."""
        if len(token) < SHORTEST:
            return 0
        return self.likenesses.get(token[:STEM]) or self.likenesses.get(_letters(token), 0)

    @cached_property
    def leading(self) -> frozenset[int]:
        """Pairs with which a cue of three words begins."""
        return frozenset(pair for pair, _ in self.threes)

    @cached_property
    def likenesses(self) -> dict[str, int]:
        """What inflected and mistyped cue words have in common with the right ones; computed once."""
        found: dict[str, int] = {}
        for word, cue in zip(self.words, self.word_cue[1:], strict=True):
            if cue and len(word) >= SHORTEST:
                found.setdefault(_letters(word), self.words[word])
                if len(word) >= STEM:
                    found.setdefault(word[:STEM], self.words[word])
        return found

    def pair_numbers(self, words: Sequence[int]) -> list[int]:
        """Return the numbers of each two words that follow one another."""
        known = self.pairs.get
        return [known(one * MOST + two, 0) for one, two in pairwise(words)]

    def arrays(self) -> dict[str, Array]:
        """Return the vocabulary as plain arrays, for the artefact."""
        threes = [(pair, word, cue) for (pair, word), cue in self.threes.items()]
        return {
            "words": _packed(self.words),
            "pairs": np.array(list(self.pairs), dtype=np.int64),
            "word_cue": np.array(self.word_cue, dtype=np.uint8),
            "pair_cue": np.array(self.pair_cue, dtype=np.uint8),
            "threes": np.array(threes, dtype=np.int32).reshape(-1, 3),
        }

    @classmethod
    def of(cls, raw: dict[str, Array]) -> Vocabulary:
        """Return the vocabulary that `arrays` made. Raises ValueError if the arrays do not fit together."""
        words = _unpacked(raw["words"])
        pairs = dict(zip(raw["pairs"].tolist(), range(1, len(raw["pairs"]) + 1), strict=True))
        threes = {(pair, word): cue for pair, word, cue in raw["threes"].tolist()}
        word_cue, pair_cue = raw["word_cue"].tolist(), raw["pair_cue"].tolist()
        if len(word_cue) != len(words) + 1 or len(pair_cue) != len(pairs) + 1:
            raise ValueError("vocabulary: as many cue classes as words and pairs expected")
        return cls(words, pairs, word_cue, pair_cue, threes)

    def grown(self, words: Iterable[str]) -> Vocabulary:
        """Return a vocabulary that has these words as well, the old ones under their numbers."""
        known = dict(self.words)
        for word in words:
            known.setdefault(word, len(known) + 1)
        return Vocabulary(known, self.pairs, _filled(self.word_cue, len(known)), self.pair_cue, self.threes)

    def paired(self, pairs: Iterable[int]) -> Vocabulary:
        """Return a vocabulary that has these pairs as well, the old ones under their numbers."""
        known = dict(self.pairs)
        for pair in pairs:
            known.setdefault(pair, len(known) + 1)
        return Vocabulary(self.words, known, self.word_cue, _filled(self.pair_cue, len(known)), self.threes)


def _letters(word: str) -> str:
    return f"~{''.join(sorted(word))}"


def _filled(cues: list[int], entries: int) -> list[int]:
    return [*cues, *[0] * (entries + 1 - len(cues))]


def _packed(entries: dict[str, int]) -> Array:
    return np.frombuffer("\n".join(entries).encode(), dtype=np.uint8)


def _unpacked(array: Array) -> dict[str, int]:
    text = array.tobytes().decode()
    entries = text.split("\n") if text else []
    return dict(zip(entries, range(1, len(entries) + 1), strict=True))
