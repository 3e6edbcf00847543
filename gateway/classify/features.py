"""From a prompt to the model's inputs: words and pairs by region, cues, structure (called by `classifier`)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from gateway.classify.prompt import Prompt
from gateway.classify.signals import FLAGS, NUMBERS, SCRIPTS, Structure, flags_of, numbers_of
from gateway.classify.tokens import Tokenizer
from gateway.classify.vocabulary import Vocabulary

Floats = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]

HEAD: Final = 400
TAIL: Final = 240
SYSTEM: Final = 300
BEFORE: Final = 160
LIMIT: Final = HEAD + TAIL + SYSTEM + 2 * BEFORE + 8
EDGE_TOKENS: Final = 24
"""Tokens at either end of the last user turn that are taken for its instruction."""
DENSE_SCRIPTS: Final = ("han", "kana")
"""Scripts in which every character is a token: half as many characters say as much and cost as much."""
CUES: Final = (
    "translate",
    "language",
    "summarize",
    "story",
    "textkind",
    "write",
    "roleplay",
    "codenoun",
    "codelang",
    "codetoken",
    "mathverb",
    "mathnoun",
    "quantity",
    "format",
    "extract",
    "context",
    "question",
    "advice",
    "rewrite",
    "tech",
    "science",
    "everyday",
    "learned",
    "output",
)
"""Cue classes, in the lexicon's order; a matched token carries its index plus one."""
_CUES: Final = len(CUES)
_PAIRED: Final = _CUES + FLAGS
"""Cues at an end and flags, of which every two make an input."""
_AFTER_CUES: Final = 3 * _CUES
_AFTER_FLAGS: Final = _AFTER_CUES + FLAGS
_SCRIPT_PLACE: Final = {script: _AFTER_FLAGS + NUMBERS + place for place, script in enumerate(SCRIPTS)}
_AFTER_NUMBERS: Final = _AFTER_FLAGS + NUMBERS + len(SCRIPTS)
DENSE_PAIRS: Final = {pair: _AFTER_NUMBERS + place for place, pair in enumerate(combinations(range(_PAIRED), 2))}
"""Two of (cue at an end, flag) → their place in the dense vector."""
DENSE: Final = _AFTER_NUMBERS + len(DENSE_PAIRS)
_NUMBER_PLACES: Final = tuple(range(_AFTER_FLAGS, _AFTER_FLAGS + NUMBERS))
UNIT: Final = 256
"""Dense inputs are whole multiples of 1 / UNIT, so that a request's sums are sums of integers."""
_LOG: Final = tuple(round(UNIT * math.log1p(count)) for count in range(3 * LIMIT))
WORDS_ALL, WORDS_HEAD, WORDS_TAIL, WORDS_SYSTEM, WORDS_BEFORE = range(5)
PAIRS_HEAD, PAIRS_TAIL, PAIRS_SYSTEM = range(5, 8)
TABLES: Final = 8
"""Each of these regions has its own weight for each entry of the vocabulary."""


@dataclass(frozen=True, slots=True)
class Features:
    """The inputs as training wants them: rows of all tables in one, with their scales, and the dense vector in full."""

    rows: Rows
    scales: Floats
    dense: Floats


class Inputs(NamedTuple):
    """The inputs of one request."""

    regions: list[tuple[int, list[int]]]
    """Table, and the numbers of the entries found in it, 0 for what is unknown; the sum of their weights counts by one
    over the root of how many are known."""
    whole: list[int]
    """Where the dense vector is 1, but for its pairs."""
    places: list[int]
    """Where it is something else."""
    values: list[int]
    """What it is there, in units of 1 / UNIT."""
    present: list[int]
    """Cues at an end and flags; each two of them are an input of 1."""
    cues: dict[int, int]
    """How often each cue class was found that was."""


class Featurizer:
    """Computes the inputs with one vocabulary."""

    def __init__(self, tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        vocabulary.likenesses  # noqa: B018 (computed now and not in the first request)
        words, pairs = len(vocabulary.words) + 1, len(vocabulary.pairs) + 1
        self.offsets = [0, *np.cumsum([words] * 5 + [pairs] * 3).tolist()]
        """Each table's first row among all rows, and how many these are."""

    def compute(self, prompt: Prompt, shape: Structure) -> Features:
        """Return the inputs for one prompt as arrays."""
        inputs = self.inputs(prompt, shape)
        dense = np.zeros(DENSE, dtype=np.float32)
        dense[inputs.places] = np.array(inputs.values) / UNIT
        dense[inputs.whole] = 1
        dense[[DENSE_PAIRS[pair] for pair in combinations(inputs.present, 2)]] = 1
        regions = [(table, [entry for entry in entries if entry]) for table, entries in inputs.regions]
        rows = [self.offsets[table] + entry for table, entries in regions for entry in entries]
        scales = [len(entries) ** -0.5 for _, entries in regions for _ in entries]
        return Features(np.array(rows, dtype=np.int64), np.array(scales, dtype=np.float32), dense)

    def texts(self, prompt: Prompt, shape: Structure) -> tuple[str, str, str]:
        """Return what is read, folded: both ends of the last turn, the system prompt's start, the turns before."""
        divisor = 2 if shape.script in DENSE_SCRIPTS else 1
        head, tail = HEAD // divisor, TAIL // divisor
        user = prompt.user if len(prompt.user) <= head + tail else f"{prompt.user[:head]}\n{prompt.user[-tail:]}"
        fold = self._tokenizer.fold
        system = fold(prompt.system[: SYSTEM // divisor]) if prompt.system else ""
        turns = prompt.before or prompt.reply
        before = fold(f"{prompt.before[:BEFORE]}\n{prompt.reply[:BEFORE]}") if turns else ""
        return fold(user), system, before

    def inputs(self, prompt: Prompt, shape: Structure) -> Inputs:
        """Return the inputs for one prompt."""
        user, system, before = self.texts(prompt, shape)
        split, vocabulary = self._tokenizer.split, self._vocabulary
        words = vocabulary.numbers(split(user))
        head, tail = words[:EDGE_TOKENS], words[-EDGE_TOKENS:]
        head_pairs = vocabulary.pair_numbers(head)
        at_head = self._cues(head, head_pairs)
        if len(words) > EDGE_TOKENS:
            tail_pairs = vocabulary.pair_numbers(tail)
            at_tail = self._cues(tail, tail_pairs)
        else:
            tail_pairs, at_tail = head_pairs, at_head
        regions = [(WORDS_ALL, words), (WORDS_HEAD, head), (WORDS_TAIL, tail)]
        regions += [(PAIRS_HEAD, head_pairs), (PAIRS_TAIL, tail_pairs)]
        if system:
            one = vocabulary.numbers(split(system))
            regions += [(WORDS_SYSTEM, one), (PAIRS_SYSTEM, vocabulary.pair_numbers(one))]
        if before:
            regions.append((WORDS_BEFORE, vocabulary.numbers(split(before))))
        found = self._found(words, at_head, at_tail)
        flags = flags_of(prompt, shape)
        present = sorted({place % _CUES for place in found if place < 2 * _CUES})
        present += [_CUES + flag for flag in flags]
        values = [int(UNIT * number) for number in numbers_of(prompt, shape)]
        values += [_LOG[count] for count in found.values()]
        whole = [_AFTER_CUES + flag for flag in flags]
        whole.append(_SCRIPT_PLACE[shape.script])
        cues = {place - 2 * _CUES: count for place, count in found.items() if place >= 2 * _CUES}
        return Inputs(regions, whole, [*_NUMBER_PLACES, *found], values, present, cues)

    def _cues(self, words: list[int], pairs: list[int]) -> list[int]:
        """Return the cues at one end of the last turn: words, pairs, and three words whose first two are a pair."""
        word_cue, pair_cue, threes = self._vocabulary.word_cue, self._vocabulary.pair_cue, self._vocabulary.threes
        cues = [cue for word in words if (cue := word_cue[word])]
        cues += [cue for pair in pairs if (cue := pair_cue[pair])]
        leading = self._vocabulary.leading
        cues += [threes.get((pair, word), 0) for pair, word in zip(pairs, words[2:], strict=False) if pair in leading]
        return [cue for cue in cues if cue]

    def _found(self, words: list[int], head: list[int], tail: list[int]) -> dict[int, int]:
        """Count each cue at the last turn's beginning, at its end and anywhere (one dense input each).

        Cues of several words are looked for at the ends only, where instructions are.
        """
        word_cue = self._vocabulary.word_cue
        inner = [cue for word in words[EDGE_TOKENS:-EDGE_TOKENS] if (cue := word_cue[word])]
        counts: dict[int, int] = {}
        for first, cues in ((-1, head), (_CUES - 1, tail), (2 * _CUES - 1, head + inner)):
            for cue in cues:
                counts[first + cue] = counts.get(first + cue, 0) + 1
        if len(words) > EDGE_TOKENS:
            for cue in tail:
                counts[2 * _CUES - 1 + cue] = counts.get(2 * _CUES - 1 + cue, 0) + 1
        return counts
