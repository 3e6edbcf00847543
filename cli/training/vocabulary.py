"""Chooses which words and pairs of words the text model knows: those in enough prompts (called by `run`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeVar

from gateway.classify.features import EDGE_TOKENS, Featurizer
from gateway.classify.prompt import read_prompt
from gateway.classify.signals import structure_of
from gateway.classify.tokens import Tokenizer
from gateway.classify.vocabulary import MOST, Vocabulary

Entry = TypeVar("Entry", str, int)


def vocabulary_of(
    cues: Vocabulary, tokenizer: Tokenizer, bodies: Sequence[dict[str, Any]], min_rows: int
) -> Vocabulary:
    """Return `cues` with all words, and pairs where pairs are read, that occur in at least `min_rows` of the bodies."""
    featurizer = Featurizer(tokenizer, cues)
    split = []
    for body in bodies:
        prompt = read_prompt(body)
        split.append([tokenizer.split(text) for text in featurizer.texts(prompt, structure_of(prompt))])
    words: Counter[str] = Counter()
    for texts in split:
        words.update({token for text in texts for token in text})
    grown = cues.grown(_common(words, min_rows))
    pairs: Counter[int] = Counter()
    for user, system, _ in split:
        parts = map(grown.numbers, (user[:EDGE_TOKENS], user[-EDGE_TOKENS:], system))
        pairs.update({one * MOST + two for part in parts for one, two in pairwise(part) if one and two})
    return grown.paired(_common(pairs, min_rows))


def _common(counts: Counter[Entry], least: int) -> list[Entry]:
    return sorted(entry for entry, count in counts.items() if count >= least)
