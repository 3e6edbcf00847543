"""From a corpus to training batches: texts of like length side by side. Called by training.

The target itself never runs: what it would say follows from its last hidden state, which the corpus has.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from engine.distill.corpus import Corpus, Split, Text
from engine.errors import DistillError


@dataclass(frozen=True, slots=True)
class Batch:
    """Several texts side by side [rows, length]; what lies behind a text's end, and prompts, have weight 0."""

    first: torch.Tensor
    """[rows]: the token at the first position."""
    tokens: torch.Tensor
    """The token after each position."""
    features: torch.Tensor
    """[rows, length, taps · width]."""
    ahead: torch.Tensor
    """[rows, length, width]: the target's last state at the next position, from which it says what is to be drafted."""
    said: torch.Tensor
    """[rows, length]: the token two after each position, as a place in the draft's vocabulary, −1 where it has none."""
    weight: torch.Tensor
    """[rows, length]: 1 where that token is one of the answer's."""


class Lessons:
    """The texts of one split."""

    def __init__(self, corpora: Sequence[Corpus], split: Split) -> None:
        """Raises DistillError where the split is empty."""
        self._width = corpora[0].recipe.width
        self.items = [
            text
            for corpus in corpora
            for path in corpus.shards()
            for text in corpus.texts(path)
            if text.entry.split == split and text.entry.total > max(2, text.entry.prompt)
        ]
        if not self.items:
            raise DistillError(f"the data has no {split} texts yet: run `breakeven distill generate` for longer")

    @property
    def answer_tokens(self) -> int:
        """Output tokens over all texts."""
        return sum(item.entry.total - item.entry.prompt for item in self.items)

    def vocabulary(self, size: int, vocab_size: int) -> torch.Tensor:
        """The `size` tokens that are likeliest in answers, ids ascending.

        Counted, a prompt's tokens for a tenth. Byte-pair vocabularies are in order of frequency, which tells rare
        tokens apart where few answers were counted: Zipf's law over ids weighs as much as a tenth of the answers.
        """
        counts = 1.0 / torch.arange(100.0, 100.0 + vocab_size)
        counts *= 0.1 * self.answer_tokens / counts.sum()
        for item in self.items:
            counts += torch.bincount(item.tokens[item.entry.prompt :], minlength=vocab_size)
            counts += 0.1 * torch.bincount(item.tokens[: item.entry.prompt], minlength=vocab_size)
        return torch.topk(counts, min(size, vocab_size)).indices.sort().values

    def batches(self, tokens: int, places: torch.Tensor, *, rng: random.Random) -> Batches:
        """All texts once, about `tokens` positions a batch, shuffled; `places` maps ids to the draft's vocabulary."""
        groups: list[list[Text]] = []
        for item in sorted(self.items, key=lambda item: len(item.tokens) + rng.uniform(0, 48)):
            if not groups or (len(groups[-1]) + 1) * len(item.tokens) > tokens:
                groups.append([])
            groups[-1].append(item)
        rng.shuffle(groups)
        return Batches(groups, places, self._width)

    def one(self, item: Text, places: torch.Tensor) -> Batch:
        """A batch of one text."""
        return _batch([item], places, self._width)


class Batches:
    """Groups of texts that become tensors when they are come to."""

    def __init__(self, groups: list[list[Text]], places: torch.Tensor, width: int) -> None:
        self._groups = groups
        self._places = places
        self._width = width

    def __len__(self) -> int:
        return len(self._groups)

    def after(self, done: int) -> Iterator[Batch]:
        """Yield what comes after the first `done` batches."""
        for group in self._groups[done:]:
            yield _batch(group, self._places, self._width)


def _batch(group: Sequence[Text], places: torch.Tensor, width: int) -> Batch:
    """Pad a group to its longest text."""
    length = max(len(item.tokens) for item in group) - 2
    rows: dict[str, list[torch.Tensor]] = {name: [] for name in Batch.__slots__}
    for item in group:
        count = len(item.tokens) - 2
        gap = length - count
        weight = torch.ones(count)
        weight[: max(0, item.entry.prompt - 2)] = 0.0
        rows["first"].append(item.tokens[0])
        rows["tokens"].append(functional.pad(item.tokens[1:-1], (0, gap)))
        rows["features"].append(functional.pad(item.features[:-1], (0, 0, 0, gap)))
        rows["ahead"].append(functional.pad(item.features[1:, -width:], (0, 0, 0, gap)))
        rows["said"].append(functional.pad(places[item.tokens[2:]], (0, gap), value=-1))
        rows["weight"].append(functional.pad(weight, (0, gap)))
    return Batch(**{name: torch.stack(tensors) for name, tensors in rows.items()})
