"""Bakes the lexicon of cue words into hash tables (used when training)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import yaml

from gateway.classify.features import CUES, SLOT_BITS, SLOT_SHIFT, CueTable, trigrams
from gateway.classify.tokens import CharTables, Tokenizer
from gateway.errors import ArtefactError


def load_lexicon(path: Path) -> dict[str, list[str]]:
    """Read cue class → entries. Raises ArtefactError if the classes are not those of `CUES`."""
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
    if list(data) != list(CUES):
        raise ArtefactError(f"{path}: expected the classes {', '.join(CUES)}, in this order")
    return {name: [entry.strip() for entry in text.split(",") if entry.strip()] for name, text in data.items()}


def build_cue_table(lexicon: dict[str, list[str]], tables: CharTables) -> CueTable:
    """Hash all entries of one to three tokens; where two classes share an entry or a slot, the first keeps it."""
    tokenizer = Tokenizer(tables, 80)
    slot = np.zeros(1 << SLOT_BITS, dtype=np.uint16)
    keys, cues = [0], [0]
    for number, entries in enumerate(lexicon.values(), start=1):
        for entry in entries:
            tokens = tokenizer.hash(entry)
            size = len(tokens.unigrams)
            if not 1 <= size <= 3:
                continue
            key = int((tokens.unigrams, tokens.bigrams, trigrams(tokens))[size - 1][0])
            place = key >> int(SLOT_SHIFT)
            if slot[place] == 0:
                slot[place] = len(keys)
                keys.append(key)
                cues.append(number)
    return CueTable(slot, np.array(keys, dtype=np.uint64), np.array(cues, dtype=np.uint8))
