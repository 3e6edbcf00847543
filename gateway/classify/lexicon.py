"""Reads the lexicon of cue words and finds the hashes of its entries (used when training)."""

from __future__ import annotations

from pathlib import Path

import yaml

from gateway.classify.features import CUES
from gateway.classify.tokens import Tokenizer
from gateway.classify.window import EDGE, codes_of
from gateway.errors import ArtefactError


def load_lexicon(path: Path) -> dict[str, list[str]]:
    """Read cue class → entries. Raises ArtefactError if the classes are not those of `CUES`."""
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
    if list(data) != list(CUES):
        raise ArtefactError(f"{path}: expected the classes {', '.join(CUES)}, in this order")
    return {name: [entry.strip() for entry in text.split(",") if entry.strip()] for name, text in data.items()}


def cue_entries(lexicon: dict[str, list[str]], tokenizer: Tokenizer) -> dict[int, int]:
    """Return the hash of each word and pair → its class plus one; where two classes share an entry, the first keeps it.

    Raises ArtefactError for an entry of more tokens: nothing of that length is looked up.
    """
    found: dict[int, int] = {}
    for cue, (name, entries) in enumerate(lexicon.items(), start=1):
        for entry in entries:
            _, hashes = tokenizer.tokens(codes_of(f" {entry} {EDGE}"))
            if not 1 <= len(hashes) <= 2:
                raise ArtefactError(f"lexicon: {name}: {entry!r}: expected one or two tokens, found {len(hashes)}")
            found.setdefault(int(hashes[0, len(hashes) - 1]), cue)
    return found
