"""From a prompt to the model's inputs: hashed n-grams by region, cue counts, structure (called by `classifier`)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from gateway.classify.prompt import Prompt
from gateway.classify.signals import FLAGS, NUMBERS, Structure, numbers_of
from gateway.classify.tokens import CharTables, Hashes, Tokenizer, Tokens, mix

Floats = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]

HEAD: Final = 700
TAIL: Final = 400
SYSTEM: Final = 300
BEFORE: Final = 160
LIMIT: Final = HEAD + TAIL + SYSTEM + 2 * BEFORE + 8
EDGE_TOKENS: Final = 24
"""Tokens at either end of the last user turn that are taken for its instruction."""
GRAM_CHARS: Final = 120
ORDER: Final = 4
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
_PAIRED: Final = len(CUES) + FLAGS
_LEFT, _RIGHT = np.triu_indices(_PAIRED, 1)
_PAIRS: Final = _LEFT * _PAIRED + _RIGHT
DENSE: Final = 3 * len(CUES) + NUMBERS + len(_PAIRS)
SLOT_BITS: Final = 17
SLOT_SHIFT: Final = np.uint64(64 - SLOT_BITS)
_SIZE: Final = len(CUES) + 1
_PLACE: Final = np.arange(LIMIT)
_TRIGRAM: Final = np.uint64(0x8CB92BA72F3D8DD7)
_HEAD: Final = np.uint64(0x1F123BB5 << 32)
_TAIL: Final = np.uint64(0x7FEB352D << 32)
_SYSTEM: Final = np.uint64(0x846CA68B << 32)
_BEFORE: Final = np.uint64(0x2C1B3C6D << 32)


@dataclass(frozen=True, slots=True)
class CueTable:
    """The lexicon as a hash table: `slot[hash]` points into `key` and `cue`; slot 0 is empty."""

    slot: npt.NDArray[np.uint16]
    key: Hashes
    cue: npt.NDArray[np.uint8]

    def match(self, hashes: Hashes) -> tuple[Rows, npt.NDArray[np.uint8]]:
        """Return the places where `hashes` holds a cue, and the cue's class plus one at each."""
        found = self.slot[hashes >> SLOT_SHIFT]
        places = np.flatnonzero(found)
        found = found[places]
        real = self.key[found] == hashes[places]
        return places[real], self.cue[found[real]]


@dataclass(frozen=True, slots=True)
class Features:
    """Model inputs: rows of the hashed table with their scales, and the dense vector."""

    rows: Rows
    scales: Floats
    dense: Floats


def trigrams(tokens: Tokens) -> Hashes:
    """Hash three tokens at a time, for cues only."""
    return mix(tokens.bigrams[:-1] * _TRIGRAM + tokens.unigrams[2:])


class Featurizer:
    """Computes `Features` with the tables of one artefact."""

    def __init__(self, tables: CharTables, cues: CueTable, bits: int) -> None:
        self._tokenizer = Tokenizer(tables, LIMIT)
        self._cues = cues
        self._shift = np.uint64(64 - bits)

    def compute(self, prompt: Prompt, shape: Structure) -> Features:
        """Return the inputs for one prompt: both ends of the last turn, the system prompt's start, the turns before."""
        divisor = 2 if shape.script in DENSE_SCRIPTS else 1
        head, tail = HEAD // divisor, TAIL // divisor
        user = prompt.user if len(prompt.user) <= head + tail else f"{prompt.user[:head]}\n{prompt.user[-tail:]}"
        system = prompt.system[: SYSTEM // divisor]
        tokens = self._tokenizer.hash(f"{user}\n{system}\n{prompt.before[:BEFORE]}\n{prompt.reply[:BEFORE]}")
        stop, system_stop = np.searchsorted(tokens.start, (len(user), len(user) + 1 + len(system))).tolist()
        rows, scales = self._hashed(tokens, len(user), stop, system_stop)
        return Features(rows, scales, _dense(self._cue_counts(tokens, stop), numbers_of(prompt, shape)))

    def _hashed(self, tokens: Tokens, chars: int, stop: int, system_stop: int) -> tuple[Rows, Floats]:
        one, two = tokens.unigrams, tokens.bigrams
        last = max(stop - 1, 0)
        head = min(EDGE_TOKENS, stop)
        tail = max(stop - EDGE_TOKENS, 0)
        blocks = [
            one[:stop],
            two[:last],
            one[:head] ^ _HEAD,
            two[: max(head - 1, 0)] ^ _HEAD,
            one[tail:stop] ^ _TAIL,
            two[tail : max(last, tail)] ^ _TAIL,
            self._tokenizer.char_grams(tokens, 0, min(GRAM_CHARS, chars), ORDER),
        ]
        if system_stop > stop:
            blocks += [one[stop:system_stop] ^ _SYSTEM, two[stop : max(system_stop - 1, stop)] ^ _SYSTEM]
        if len(one) > system_stop:
            blocks.append(one[system_stop:] ^ _BEFORE)
        sizes = [len(block) for block in blocks]
        scales = np.repeat(np.array([1.0 / math.sqrt(max(size, 1)) for size in sizes], dtype=np.float32), sizes)
        rows = (np.concatenate(blocks) >> self._shift).view(np.int64)
        return rows, scales

    def _cue_counts(self, tokens: Tokens, stop: int) -> Floats:
        one, two, three = (
            tokens.unigrams[:stop],
            tokens.bigrams[: max(stop - 1, 0)],
            trigrams(tokens)[: max(stop - 2, 0)],
        )
        places, cues = self._cues.match(np.concatenate((one, two, three)))
        places = np.concatenate((_PLACE[: len(one)], _PLACE[: len(two)], _PLACE[: len(three)]))[places]
        counts = np.empty((3, _SIZE), dtype=np.float32)
        counts[0] = np.bincount(cues[places < EDGE_TOKENS], minlength=_SIZE)
        counts[1] = np.bincount(cues[places >= stop - EDGE_TOKENS], minlength=_SIZE)
        counts[2] = np.bincount(cues, minlength=_SIZE)
        return np.log1p(counts[:, 1:])


def _dense(cues: Floats, numbers: tuple[float, ...]) -> Floats:
    """Join counts, numbers, and which two of (cue at an end, flag) hold together: `write` says little alone."""
    dense = np.empty(DENSE, dtype=np.float32)
    dense[: cues.size] = cues.ravel()
    dense[cues.size : cues.size + NUMBERS] = numbers
    present = np.empty(_PAIRED, dtype=np.float32)
    present[: len(CUES)] = (cues[0] + cues[1]) > 0
    present[len(CUES) :] = numbers[:FLAGS]
    dense[cues.size + NUMBERS :] = np.outer(present, present).ravel()[_PAIRS]
    return dense
