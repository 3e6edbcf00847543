"""From a prompt to the model's inputs: hashed n-grams by region, cue counts, structure (called by `classifier`)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from gateway.classify.prompt import Prompt
from gateway.classify.signals import SCRIPTS, Structure
from gateway.classify.tokens import CharTables, Hashes, Tokenizer, Tokens, mix

Floats = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]

HEAD: Final = 900
TAIL: Final = 500
SYSTEM: Final = 300
BEFORE: Final = 160
LIMIT: Final = HEAD + TAIL + SYSTEM + 2 * BEFORE + 8
EDGE_TOKENS: Final = 24
"""Tokens at either end of the last user turn that are taken for its instruction."""
GRAM_CHARS: Final = 160
ORDER: Final = 4
_TRIGRAM: Final = np.uint64(0x8CB92BA72F3D8DD7)
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
)
"""Cue classes, in the lexicon's order; a matched token carries its index plus one."""
STRUCTURAL: Final = (
    "chars",
    "lines",
    "paragraphs",
    "fences",
    "code_marks",
    "math_marks",
    "digits",
    "symbols",
    "braces",
    "asks",
    "copyable",
    "long",
    "system",
    "turns",
    "result",
    "images",
    "prediction",
    *(f"script_{name}" for name, *_ in SCRIPTS),
)
DENSE: Final = 3 * len(CUES) + len(STRUCTURAL)


@dataclass(frozen=True, slots=True)
class CueTable:
    """The lexicon as a hash table: `slot[hash]` points into `key` and `cue`; slot 0 is empty."""

    slot: npt.NDArray[np.uint16]
    key: Hashes
    cue: npt.NDArray[np.uint8]

    def match(self, hashes: Hashes) -> npt.NDArray[np.uint8]:
        """Return the cue class (index plus one) of each hash, 0 where it is no cue."""
        found = self.slot[hashes >> np.uint64(64 - 16)]
        matched: npt.NDArray[np.uint8] = self.cue[found] * (self.key[found] == hashes)
        return matched


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
        user = prompt.user if len(prompt.user) <= HEAD + TAIL else f"{prompt.user[:HEAD]}\n{prompt.user[-TAIL:]}"
        system = prompt.system[:SYSTEM]
        text = f"{user}\n{system}\n{prompt.before[:BEFORE]}\n{prompt.reply[:BEFORE]}"
        tokens = self._tokenizer.hash(text)
        limits = (len(user), len(user) + 1 + len(system))
        stop, system_stop = (int(i) for i in np.searchsorted(tokens.start, limits))
        cues = self._cue_counts(tokens, stop)
        return Features(
            *self._hashed(tokens, len(user), stop, system_stop), np.concatenate((cues, _structural(prompt, shape)))
        )

    def _hashed(self, tokens: Tokens, chars: int, stop: int, system_stop: int) -> tuple[Rows, Floats]:
        one, two = tokens.unigrams, tokens.bigrams
        head = min(EDGE_TOKENS, stop)
        tail = max(stop - EDGE_TOKENS, 0)
        blocks = (
            one[:stop],
            two[: max(stop - 1, 0)],
            one[:head] ^ np.uint64(0x1F123BB5 << 32),
            two[: max(head - 1, 0)] ^ np.uint64(0x1F123BB5 << 32),
            one[tail:stop] ^ np.uint64(0x7FEB352D << 32),
            two[tail : max(stop - 1, tail)] ^ np.uint64(0x7FEB352D << 32),
            self._tokenizer.char_grams(tokens, 0, min(GRAM_CHARS, chars), ORDER),
            one[stop:system_stop] ^ np.uint64(0x846CA68B << 32),
            two[stop : max(system_stop - 1, stop)] ^ np.uint64(0x846CA68B << 32),
            one[system_stop:] ^ np.uint64(0x2C1B3C6D << 32),
        )
        sizes = [len(block) for block in blocks]
        scales = np.repeat(np.array([1.0 / math.sqrt(max(size, 1)) for size in sizes], dtype=np.float32), sizes)
        rows = (np.concatenate(blocks) >> self._shift).astype(np.int64)
        return rows, scales

    def _cue_counts(self, tokens: Tokens, stop: int) -> Floats:
        size = len(CUES) + 1
        counts = np.zeros((3, size), dtype=np.float32)
        for length, hashes in enumerate((tokens.unigrams, tokens.bigrams, trigrams(tokens))):
            cues = self._cues.match(hashes[: max(stop - length, 0)])
            for row, part in enumerate((cues[:EDGE_TOKENS], cues[-EDGE_TOKENS:], cues)):
                counts[row] += np.bincount(part, minlength=size)
        np.log1p(counts, out=counts)
        return counts[:, 1:].ravel()


def _structural(prompt: Prompt, shape: Structure) -> Floats:
    values = (
        math.log1p(shape.chars) / 4,
        math.log1p(shape.lines) / 2,
        math.log1p(shape.paragraphs) / 2,
        min(shape.fences, 4) / 2,
        math.log1p(shape.code_marks),
        math.log1p(shape.math_marks),
        4 * shape.digits,
        4 * shape.symbols,
        float(shape.braces),
        float(shape.asks),
        shape.copyable,
        float(shape.chars > 1200),
        float(bool(prompt.system)),
        float(prompt.turns > 1),
        float(bool(prompt.result)),
        float(prompt.images),
        float(bool(prompt.prediction)),
        *(float(shape.script == name) for name, *_ in SCRIPTS),
    )
    return np.array(values, dtype=np.float32)
