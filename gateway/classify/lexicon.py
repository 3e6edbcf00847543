"""Reads the lexicon of cue words and makes it the start of a vocabulary (used when training)."""

from __future__ import annotations

from pathlib import Path

import yaml

from gateway.classify.features import CUES
from gateway.classify.tokens import Tokenizer
from gateway.classify.vocabulary import MOST, Vocabulary
from gateway.errors import ArtefactError


def load_lexicon(path: Path) -> dict[str, list[str]]:
    """Read cue class → entries. Raises ArtefactError if the classes are not those of `CUES`."""
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
    if list(data) != list(CUES):
        raise ArtefactError(f"{path}: expected the classes {', '.join(CUES)}, in this order")
    return {name: [entry.strip() for entry in text.split(",") if entry.strip()] for name, text in data.items()}


def cue_vocabulary(lexicon: dict[str, list[str]], tokenizer: Tokenizer) -> Vocabulary:
    """Number all entries of one to three tokens; where two classes share an entry, the first keeps it."""
    words: dict[str, int] = {}
    pairs: dict[int, int] = {}
    threes: dict[tuple[int, int], int] = {}
    word_cue, pair_cue = [0], [0]
    for cue, entries in enumerate(lexicon.values(), start=1):
        for entry in entries:
            tokens = tokenizer.split(tokenizer.fold(entry))
            if not 1 <= len(tokens) <= 3:
                continue
            for token in tokens:
                if token not in words:
                    words[token] = len(word_cue)
                    word_cue.append(0)
            numbers = [words[token] for token in tokens]
            if len(numbers) == 1:
                word_cue[numbers[0]] = word_cue[numbers[0]] or cue
                continue
            pair = numbers[0] * MOST + numbers[1]
            if pair not in pairs:
                pairs[pair] = len(pair_cue)
                pair_cue.append(0)
            if len(numbers) == 2:
                pair_cue[pairs[pair]] = pair_cue[pairs[pair]] or cue
            else:
                threes.setdefault((pairs[pair], numbers[2]), cue)
    return Vocabulary(words, pairs, word_cue, pair_cue, threes)
