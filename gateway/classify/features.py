"""From a prompt to the model's inputs: known tokens by region, cues, structure (called by `classifier`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from gateway.classify.prompt import Prompt
from gateway.classify.signals import FLAGS, NUMBERS, SCRIPTS, Structure, facts_of, structure_of
from gateway.classify.tokens import Places, Tokenizer
from gateway.classify.vocabulary import Vocabulary
from gateway.classify.window import ENDING, LIMIT, Codes, Window, codes_of

Floats = npt.NDArray[np.float32]
Cues = npt.NDArray[np.uint8]
Weights = npt.NDArray[np.int8]

ENDS: Final = 2 * 25
"""Words and pairs at either end of the last user turn that are taken for its instruction."""
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
"""Cue classes, in the lexicon's order; an entry of the vocabulary carries the index of its class plus one, or 0."""
ALL, AT_HEAD, AT_TAIL, IN_SYSTEM, IN_BEFORE = range(5)
REGIONS: Final = 5
"""Each of these regions has its own weights for each entry of the vocabulary; the first three are of the last turn."""
TURN: Final = 3
_CUES: Final = len(CUES)
COUNTED: Final = TURN * _CUES
"""Counts of cues; numbers and flags follow."""
SUMMED: Final = COUNTED + NUMBERS + FLAGS
PAIRED: Final = _CUES + FLAGS
"""Cues at an end and flags, of which every two make an input."""
AFTER_SCRIPTS: Final = SUMMED + len(SCRIPTS)
DENSE_PAIRS: Final = tuple(combinations(range(PAIRED), 2))
DENSE: Final = AFTER_SCRIPTS + len(DENSE_PAIRS)
ONES: Final = np.ones(2 * LIMIT, dtype=np.float32)
ROOTS: Final = tuple((1 / np.sqrt(np.maximum(np.arange(2 * LIMIT), 1))).tolist())
"""What a sum of weights counts by: one over the root of how many entries are known, of the whole turn for its ends."""


class Read(NamedTuple):
    """One request as far as it has been read."""

    prompt: Prompt
    window: Window
    codes: Codes
    """The window's code points."""
    shape: Structure

    @classmethod
    def of(cls, prompt: Prompt, window: Window) -> Read:
        """Read what `window` has of `prompt`."""
        codes = codes_of(window.text)
        return cls(prompt, window, codes, structure_of(prompt, window, codes))


class Inputs(NamedTuple):
    """The inputs of some requests: in each array and list the first axis is the request."""

    regions: list[tuple[Places, ...]]
    """Places of the known entries in each region."""
    sums: Floats
    """For the whole turn, its head and its tail: how often each cue class was found, then the sums of the weights."""
    dense: Floats
    """Roots of the counts of cues, numbers, flags, and which cues are at an end; the last two are 0 or 1."""
    scripts: list[int]

    @property
    def summed(self) -> Floats:
        """Roots of the counts of cues, numbers and flags."""
        return self.dense[:, :SUMMED]

    @property
    def paired(self) -> Floats:
        """Flags and cues at an end; each two of them are an input."""
        return self.dense[:, SUMMED - FLAGS :]


Marks = tuple[int, int, int, int, int, int]
"""Among what is known, where a turn begins, its head ends, its tail begins, it ends, the system prompt, all ends."""


@dataclass(frozen=True, slots=True)
class Features:
    """The inputs as training wants them: rows of all regions' weights in one, with their scales, and all dense ones."""

    rows: Places
    scales: Floats
    dense: Floats


class Featurizer:
    """Computes the inputs with one vocabulary, its entries' cue classes and, to sum them on the way, their weights."""

    def __init__(
        self, tokenizer: Tokenizer, vocabulary: Vocabulary, cues: Cues, weights: Weights | None = None
    ) -> None:
        self._tokenizer = tokenizer
        self._find = vocabulary.find
        self.places = len(vocabulary.keys)
        marks = (cues[:, None] == np.arange(1, _CUES + 1)).astype(np.int8)
        self._table = marks if weights is None else np.hstack((marks, weights))

    def compute(self, read: Read) -> Features:
        """Return the inputs for one prompt as arrays."""
        inputs = self.inputs((read,))
        found, paired = inputs.regions[0], np.roll(inputs.paired[0], -FLAGS)
        rows = np.concatenate([region * self.places + found[region] % self.places for region in range(REGIONS)])
        sizes = [len(places) for places in found]
        counted = [sizes[ALL]] * TURN + sizes[TURN:]
        scales = np.repeat([ROOTS[count] for count in counted], sizes).astype(np.float32)
        dense = np.zeros(DENSE, dtype=np.float32)
        dense[:SUMMED] = inputs.summed[0]
        dense[SUMMED + inputs.scripts[0]] = 1
        dense[AFTER_SCRIPTS:] = [paired[one] * paired[two] for one, two in DENSE_PAIRS]
        return Features(rows, scales, dense)

    def inputs(self, read: Sequence[Read]) -> Inputs:
        """Return the inputs for one to `TOGETHER` prompts: array operations for eight cost little more than for one."""
        found, marks = self._found(read)
        rows = self._table.take(found, axis=0).astype(np.float32)  # whole numbers: their sums are exact
        which = np.zeros((TURN * len(read), len(found)), dtype=np.float32)
        row = 0
        for first, head, tail, end, _, _ in marks:
            which[row + ALL, first:end] = which[row + AT_HEAD, first:head] = which[row + AT_TAIL, tail:end] = 1
            row += TURN
        sums = which.dot(rows).reshape(len(read), TURN, -1)
        counts = sums[:, :, :_CUES]
        dense = np.empty((len(read), SUMMED + _CUES), dtype=np.float32)
        dense[:, :COUNTED] = counts.reshape(len(read), -1)
        dense[:, COUNTED:SUMMED] = [facts_of(each.prompt, each.shape) for each in read]
        np.sqrt(dense[:, :COUNTED], out=dense[:, :COUNTED])
        np.minimum(counts[:, AT_HEAD] + counts[:, AT_TAIL], 1, out=dense[:, SUMMED:])
        regions = [_regions(found, each) for each in marks]
        return Inputs(regions, sums, dense, [SCRIPTS.index(each.shape.script) for each in read])

    def _found(self, read: Sequence[Read]) -> tuple[Places, list[Marks]]:
        """Return the places of all that is known of these windows, and where in there each one's parts lie."""
        joints = list(accumulate([len(each.codes) for each in read[:-1]]))
        codes = np.concatenate([each.codes for each in read]) if joints else read[0].codes
        starts, hashes = self._tokenizer.tokens(codes, joints)
        places, known = self._find(hashes.ravel())
        edges: list[int] = []
        for first, each in zip((0, *joints), read, strict=True):
            window = each.window
            edges += (first, first + window.second, first + window.third, first + len(each.codes) - ENDING)
        ends = iter((2 * starts.searchsorted(edges)).tolist())
        bounds: list[int] = []
        for first, second, third, last in zip(ends, ends, ends, ends, strict=True):
            bounds += (first, min(first + ENDS, second), max(second - ENDS, first), second, third, last)
        where = known.nonzero()[0]
        at = iter(where.searchsorted(bounds).tolist())
        return places.take(where), list(zip(at, at, at, at, at, at, strict=True))


def _regions(found: Places, marks: Marks) -> tuple[Places, ...]:
    first, head, tail, end, system, last = marks
    return found[first:end], found[first:head], found[tail:end], found[end:system], found[system:last]
