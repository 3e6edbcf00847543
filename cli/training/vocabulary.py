"""Chooses which words and pairs of words the text model knows: those of enough families (called by `run`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gateway.classify.features import Cues
from gateway.classify.prompt import read_prompt
from gateway.classify.tokens import Hashes, Tokenizer
from gateway.classify.vocabulary import FULL, Vocabulary, build_vocabulary
from gateway.classify.window import codes_of, window_of

MOST = int(FULL * (1 << 15))
"""Half of what an artefact could hold: a table of twice the size was 4 % slower to use, and took 32 ms to load."""
SMALL = 40
"""Where there are fewer than so many families for each one asked for, fewer are asked for."""


def vocabulary_of(
    cues: dict[int, int],
    tokenizer: Tokenizer,
    bodies: Sequence[dict[str, Any]],
    families: Sequence[str],
    min_families: int,
) -> tuple[Vocabulary, Cues]:
    """Return `cues` with what occurs in enough families of bodies, the commonest first; and the cues by place.

    What only the prompts of one situation or document have in common says nothing of their task.
    """
    members: dict[str, list[Hashes]] = {}
    for body, family in zip(bodies, families, strict=True):
        members.setdefault(family, []).append(tokenizer.tokens(codes_of(window_of(read_prompt(body)).text))[1].ravel())
    found = [np.unique(np.concatenate(hashes)) for hashes in members.values()]
    entries, counts = np.unique(np.concatenate(found), return_counts=True)
    common = counts >= min(min_families, max(1, len(members) // SMALL))
    shared = dict(zip(entries[common].tolist(), counts[common].tolist(), strict=True))
    kept = sorted(shared.keys() - cues.keys(), key=lambda entry: (-shared[entry], entry))[: MOST - len(cues)]
    vocabulary = build_vocabulary([*cues, *kept])
    classes = np.zeros(len(vocabulary.keys), dtype=np.uint8)
    classes[vocabulary.find(np.array(list(cues), dtype=np.int64))[0]] = list(cues.values())
    return vocabulary, classes
