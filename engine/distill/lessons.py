"""From a corpus to training batches: texts of like length side by side. Called by training.

The target itself never runs: what it would say follows from its last hidden state, which the corpus has.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from engine.distill.corpus import Corpus, Split, Text
from engine.errors import DistillError
from engine.models import LoadedModel

_COUNTED = 40_000
"""Positions by which a draft's vocabulary is chosen."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Texts of like prompts side by side [rows, length]; what lies behind a text's end, and prompts, have weight 0."""

    first: torch.Tensor
    """[rows]: the token at the first position."""
    tokens: torch.Tensor
    """The token after each position."""
    features: torch.Tensor
    """[rows, length, taps · width]."""
    ahead: torch.Tensor
    """[rows, answers, width]: the target's last state at the next position: from it, it says what is to be drafted."""
    said: torch.Tensor
    """[rows, answers]: the token two after each position, as a place in the draft's vocabulary; −1: it has none."""
    weight: torch.Tensor
    """[rows, answers]: 1 where that token is one of the answer's."""
    start: int
    """The first position at which that is so in any row; `ahead`, `said` and `weight` begin there."""


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
            raise DistillError(f"the data has no {split} texts yet: {_remedy(corpora, split)}")

    @property
    def answer_tokens(self) -> int:
        """Output tokens over all texts."""
        return sum(item.entry.total - item.entry.prompt for item in self.items)

    @torch.inference_mode()
    def vocabulary(self, size: int, target: LoadedModel) -> torch.Tensor:
        """The `size` tokens that are likeliest in answers, ids ascending.

        Not those that were said are counted but, with their chances, all that the target might have said: that tells
        more of rare tokens. A prompt's tokens count for a tenth. Byte-pair vocabularies are in order of frequency:
        Zipf's law over ids weighs as much as a tenth of the answers.
        """
        model: Any = target.model
        norm, output = model.get_decoder().norm, model.get_output_embeddings()
        counts = 1.0 / torch.arange(100.0, 100.0 + target.vocab_size)
        counts *= 0.1 * self.answer_tokens / counts.sum()
        every = -(-self.answer_tokens // _COUNTED)
        for item in self.items:
            states = item.features[max(0, item.entry.prompt - 1) :: every, -self._width :]
            logits = output(norm(states.to(target.device, target.dtype))).float()
            counts += every * torch.softmax(logits, dim=-1).sum(0).cpu()
            counts += 0.1 * torch.bincount(item.tokens[: item.entry.prompt], minlength=target.vocab_size)
        return torch.topk(counts, min(size, target.vocab_size)).indices.sort().values

    def batches(self, tokens: int, places: torch.Tensor, *, rng: random.Random) -> Batches:
        """All texts once, about `tokens` positions a batch, shuffled; `places` maps ids to the draft's vocabulary."""
        groups: list[list[Text]] = []
        longest = 0
        for item in sorted(self.items, key=lambda item: (item.entry.prompt // 16, rng.random())):
            longest = max(longest, len(item.tokens))
            if not groups or (len(groups[-1]) + 1) * longest > tokens:
                groups.append([])
                longest = len(item.tokens)
            groups[-1].append(item)
        rng.shuffle(groups)
        return Batches(groups, places, self._width)

    def one(self, item: Text, places: torch.Tensor) -> Batch:
        """A batch of one text."""
        return _batch([item], places, self._width)


def _remedy(corpora: Sequence[Corpus], split: Split) -> str:
    """What to do for texts of a split that are missing: generation makes those to train on last."""
    if split != "train" and any(entry.split == "train" for corpus in corpora for entry in corpus.entries()):
        return "`breakeven distill generate` makes them before others, so give it more prompts or a new --work"
    return "run `breakeven distill generate` for longer"


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
    start = max(0, min(item.entry.prompt for item in group) - 2)
    names = ("first", "tokens", "features", "ahead", "said", "weight")
    rows: dict[str, list[torch.Tensor]] = {name: [] for name in names}
    for item in group:
        count = len(item.tokens) - 2
        gap = length - count
        weight = torch.ones(count)
        weight[: max(0, item.entry.prompt - 2)] = 0.0
        rows["first"].append(item.tokens[0])
        rows["tokens"].append(functional.pad(item.tokens[1:-1], (0, gap)))
        rows["features"].append(functional.pad(item.features[:-1], (0, 0, 0, gap)))
        rows["ahead"].append(functional.pad(item.features[1 + start :, -width:], (0, 0, 0, gap)))
        rows["said"].append(functional.pad(places[item.tokens[2 + start :]], (0, gap), value=-1))
        rows["weight"].append(functional.pad(weight[start:], (0, gap)))
    return Batch(**{name: torch.stack(tensors) for name, tensors in rows.items()}, start=start)
