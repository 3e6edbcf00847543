"""The two kinds of draft that can be trained, begun or taken up again. Called by the trainer."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, Protocol

import torch

from engine.distill.head import FeatureHead
from engine.distill.lessons import Batch, Lessons
from engine.distill.of_target import matrices, shape_of
from engine.distill.standalone import StandaloneDraft, read_standalone
from engine.errors import DistillError
from engine.models import LoadedModel
from engine.spec_decode.head_file import SHIPPED, check_head, read_head

Kind = Literal["eagle", "standalone"]
FILES: dict[Kind, str] = {"eagle": "eagle.safetensors", "standalone": "draft.safetensors"}
"""What each kind is kept as."""
_FIT = 40_000
"""Positions for the head's linear start."""


class Learner(Protocol):
    """What the trainer needs of a draft."""

    @property
    def vocab(self) -> torch.Tensor:
        """Ids of the tokens in use, ascending."""

    def steps(self, batch: Batch, count: int) -> Iterator[torch.Tensor]:
        """Yield the logits [rows, length, vocab] of `count` steps of drafting, at every position at once."""

    def chained(self, batch: Batch, count: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield the logits [n, vocab] to learn from and their flat places [n], ascending, in [rows, answers]."""

    def output(self, normed: torch.Tensor) -> torch.Tensor:
        """Logits [..., vocab] of the target's normed last states."""

    def write(self, path: Path) -> None:
        """Write the draft."""

    def weights(self) -> dict[str, torch.Tensor]:
        """What training changes, by name."""


def make_head(
    target: LoadedModel, lessons: Lessons, taps: Sequence[int], vocab: torch.Tensor, *, fit: bool, seed: int
) -> FeatureHead:
    """A new feature-fed head; `fit` gives it the linear start."""
    shape = shape_of(target, tuple(taps), len(vocab))
    head = FeatureHead(shape, *matrices(target), vocab)
    head.begin_as(target)
    if fit:
        order = random.Random(seed).sample(lessons.items, len(lessons.items))  # noqa: S311 - no secrets
        head.fit([(item.tokens, item.features) for item in order], _FIT)
    return head.to(target.device)


def read_learner(
    kind: Kind, path: Path, target: LoadedModel, taps: Sequence[int], vocab: torch.Tensor
) -> FeatureHead | StandaloneDraft:
    """A written draft, to be trained further with this vocabulary. Raises an EngineError naming the file."""
    if kind == "eagle":
        file = read_head(path)
        check_head(file, target, str(path))
        if file.shape.taps != tuple(taps):
            raise DistillError(f"{path}: reads the layers {file.shape.taps}, the data has {tuple(taps)}")
        return FeatureHead.of_file(file, target, vocab)
    model = read_standalone(path, target)
    draft = StandaloneDraft(target, int(model.config.num_hidden_layers), vocab)
    draft.model.load_state_dict(model.state_dict(), strict=False)
    return draft.to(target.device)


def restore(learner: Learner, weights: dict[str, torch.Tensor]) -> None:
    """Put back what `weights` returned. Raises DistillError where it does not fit."""
    own = learner.weights()
    if own.keys() != weights.keys():
        raise DistillError("the checkpoint is of another kind of draft; give another --out, or delete it")
    with torch.no_grad():
        for name, weight in own.items():
            weight.copy_(weights[name])


def shipped_draft(target: str) -> Path:
    """The standalone draft that comes with the program. Raises DistillError where the target has none."""
    path = SHIPPED / target / FILES["standalone"]
    if not path.is_file():
        raise DistillError(f"no draft comes with {target}: give a file made by `breakeven distill train`")
    return path
