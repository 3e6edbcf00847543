"""From a prompt to the model's inputs: hashed n-grams by region, cue counts, structure (called by `classifier`)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from gateway.classify.prompt import Prompt
from gateway.classify.signals import FLAGS, NUMBERS, Structure, numbers_of
from gateway.classify.tokens import ORDER, CharTables, Hashes, Tokenizer, Tokens, mix

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
_AFTER_NUMBERS: Final = _AFTER_CUES + NUMBERS
_PAIR_PLACE: Final = {pair: _AFTER_NUMBERS + place for place, pair in enumerate(combinations(range(_PAIRED), 2))}
DENSE: Final = _AFTER_NUMBERS + len(_PAIR_PLACE)
SLOT_BITS: Final = 17
SLOT_SHIFT: Final = np.uint64(64 - SLOT_BITS)
_LOG: Final = tuple(math.log1p(count) for count in range(3 * LIMIT))
_NUMBER_PLACES: Final = tuple(range(_AFTER_CUES, _AFTER_NUMBERS))
_SCALE: Final = (1.0 / np.sqrt(np.maximum(np.arange(LIMIT + 1), 1))).astype(np.float32)
"""Weight of an n-gram by the number of n-grams in its region."""
_TRIGRAM: Final = np.uint64(0x8CB92BA72F3D8DD7)
_HEAD: Final = np.uint64(0x1F123BB5 << 32)
_TAIL: Final = np.uint64(0x7FEB352D << 32)
_SYSTEM: Final = np.uint64(0x846CA68B << 32)
_BEFORE: Final = np.uint64(0x2C1B3C6D << 32)
_NONE: Final = np.uint64(0)
_SALTS: Final = {
    (system, before): np.array(
        [_HEAD, _HEAD, _TAIL, _TAIL, _NONE, *[_SYSTEM] * 2 * system, *[_BEFORE] * before, _NONE, _NONE]
    )
    for system in (False, True)
    for before in (False, True)
}
"""What the hashes of each of `_regions` are combined with, by which regions there are."""


@dataclass(frozen=True, slots=True)
class CueTable:
    """The lexicon as a hash table: `slot[hash]` points into `key` and `cue`; slot 0 is empty."""

    slot: npt.NDArray[np.uint16]
    key: Hashes
    cue: npt.NDArray[np.uint8]

    def match(self, hashes: Hashes) -> Iterator[tuple[int, int, int]]:
        """Return the places where `hashes` may hold a cue: each with the hash there and the slot's content."""
        found = self.slot.take((hashes >> SLOT_SHIFT).view(np.int64))
        places = found.nonzero()[0]
        return zip(places.tolist(), hashes.take(places).tolist(), found.take(places).tolist(), strict=True)


@dataclass(frozen=True, slots=True)
class Features:
    """Model inputs: rows of the hashed table with their scales, and the dense vector."""

    rows: Rows
    scales: Floats
    dense: Floats


class Inputs(NamedTuple):
    """The same as a request needs them: of the dense vector only what is not zero."""

    rows: Rows
    scales: Floats
    places: list[int]
    values: list[float]
    cues: dict[int, int]
    """How often each cue class was found that was."""


def trigrams(tokens: Tokens) -> Hashes:
    """Hash three tokens at a time, for cues only."""
    threes = tokens.bigrams[:-1] * _TRIGRAM
    threes += tokens.unigrams[2:]
    return mix(threes)


class Featurizer:
    """Computes `Features` with the tables of one artefact."""

    def __init__(self, tables: CharTables, cues: CueTable, bits: int) -> None:
        self._tokenizer = Tokenizer(tables, LIMIT)
        self._cues = cues
        self._keys: list[int] = cues.key.tolist()
        self._cue_places = [cue - 1 for cue in cues.cue.tolist()]
        self._shift = np.uint64(64 - bits)

    def compute(self, prompt: Prompt, shape: Structure) -> Features:
        """Return the inputs for one prompt with the dense vector in full, as training wants them."""
        inputs = self.inputs(prompt, shape)
        dense = np.zeros(DENSE, dtype=np.float32)
        dense[inputs.places] = inputs.values
        return Features(inputs.rows, inputs.scales, dense)

    def inputs(self, prompt: Prompt, shape: Structure) -> Inputs:
        """Return the inputs for one prompt: both ends of the last turn, the system prompt's start, the turns before."""
        divisor = 2 if shape.script in DENSE_SCRIPTS else 1
        head, tail = HEAD // divisor, TAIL // divisor
        user = prompt.user if len(prompt.user) <= head + tail else f"{prompt.user[:head]}\n{prompt.user[-tail:]}"
        system = prompt.system[: SYSTEM // divisor]
        text = f"{user}\n{system}\n{prompt.before[:BEFORE]}\n{prompt.reply[:BEFORE]}"
        tokens = self._tokenizer.hash(text, max(0, min(GRAM_CHARS, len(user)) - ORDER + 1))
        stop, system_stop = tokens.start.searchsorted((len(user), len(user) + 1 + len(system))).tolist()
        last, beyond = max(stop - 1, 0), max(stop - 2, 0)
        blocks, salts = _regions(tokens, stop, system_stop)
        sizes = np.array([len(block) for block in blocks])
        hashes = np.concatenate((*blocks, trigrams(tokens)[:beyond]))
        kept = len(hashes) - beyond
        salted = salts.repeat(sizes)
        salted ^= hashes[:kept]
        salted >>= self._shift
        scales = _SCALE.take(sizes).repeat(sizes)
        found = self._found(hashes[kept - stop - last :], stop, last)
        places, values = _dense(found, numbers_of(prompt, shape))
        cues = {place - 2 * _CUES: count for place, count in found.items() if place >= 2 * _CUES}
        return Inputs(salted.view(np.int64), scales, places, values, cues)

    def _found(self, hashes: Hashes, stop: int, last: int) -> dict[int, int]:
        """Count each cue at the last turn's beginning, at its end and anywhere (one dense input each).

        `hashes` are those of tokens, of pairs (from `stop` on) and of three tokens (from `stop + last` on).
        """
        counts: dict[int, int] = {}
        keys, cues = self._keys, self._cue_places
        for at, value, slot in self._cues.match(hashes):
            if keys[slot] == value:
                place = at if at < stop else at - stop if at < stop + last else at - stop - last
                index = cues[slot]
                if place < EDGE_TOKENS:
                    counts[index] = counts.get(index, 0) + 1
                if place >= stop - EDGE_TOKENS:
                    counts[index + _CUES] = counts.get(index + _CUES, 0) + 1
                counts[index + 2 * _CUES] = counts.get(index + 2 * _CUES, 0) + 1
        return counts


def _regions(tokens: Tokens, stop: int, system_stop: int) -> tuple[list[Hashes], Hashes]:
    """Return the hashes region by region, and what tells each region's from others.

    Those of the last turn come last, as cues are looked for in them.
    """
    one, two = tokens.unigrams, tokens.bigrams
    last = max(stop - 1, 0)
    head = min(EDGE_TOKENS, stop)
    tail = max(stop - EDGE_TOKENS, 0)
    blocks = [one[:head], two[: max(head - 1, 0)], one[tail:stop], two[tail : max(last, tail)], tokens.grams]
    system, before = system_stop > stop, len(one) > system_stop
    if system:
        blocks += [one[stop:system_stop], two[stop : max(system_stop - 1, stop)]]
    if before:
        blocks.append(one[system_stop:])
    blocks += [one[:stop], two[:last]]
    return blocks, _SALTS[system, before]


def _dense(found: dict[int, int], numbers: tuple[float, ...]) -> tuple[list[int], list[float]]:
    """Return where the dense vector is not zero, and what it is there.

    It joins counts of cues, numbers, and which two of (cue at an end, flag) hold together: `write` says little alone.
    """
    present = sorted({place % _CUES for place in found if place < 2 * _CUES})
    present += [_CUES + flag for flag in range(FLAGS) if numbers[flag]]
    pairs = [_PAIR_PLACE[pair] for pair in combinations(present, 2)]
    places = [*found, *_NUMBER_PLACES, *pairs]
    return places, [*[_LOG[count] for count in found.values()], *numbers, *([1.0] * len(pairs))]
