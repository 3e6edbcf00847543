"""The training data on disk: the target's generations and its hidden states, in shards that are whole or absent.

Written by `engine/distill/generate.py`, read by training and evaluation. A folder holds `corpus.json` (how the data is
made) and `shards/NNNNN.safetensors`, each with a few dozen answers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from engine.errors import DistillError

Split = Literal["train", "choose", "held-out"]
"""Texts are learnt from, choose the weights that are kept, or judge these: a prompt does one of the three."""


class Recipe(msgspec.Struct, frozen=True):
    """How a corpus is made; a folder never mixes two."""

    model: str
    dtype: str
    taps: tuple[int, ...]
    """Layers, counted from 1, whose outputs are kept."""
    width: int
    """Size of one hidden state."""
    max_tokens: int
    seed: int


class Entry(msgspec.Struct, frozen=True):
    """One answer of a shard, without its tokens."""

    id: str
    """The prompt's id."""
    sample: int
    task: str
    split: Split
    temperature: float
    prompt: int
    """Tokens of the prompt."""
    total: int
    """Tokens of prompt and answer, the end-of-sequence token included where the answer ended by itself."""


@dataclass(frozen=True, slots=True)
class Text:
    """One answer with what the target computed for it."""

    entry: Entry
    tokens: torch.Tensor
    """[total], prompt and answer."""
    features: torch.Tensor
    """[total − 1, taps · width], bfloat16: the tapped hidden states of every token but the last."""


class Corpus:
    """A folder of shards. Raises DistillError where it holds something else, or data made in another way."""

    def __init__(self, folder: Path, recipe: Recipe | None = None) -> None:
        """Open `folder`; with a recipe, create it where it does not exist."""
        self._folder = folder
        self._shards = folder / "shards"
        note = folder / "corpus.json"
        try:
            if recipe is not None and not note.exists():
                self._shards.mkdir(parents=True, exist_ok=True)
                note.write_bytes(msgspec.json.format(msgspec.json.encode(recipe)))
            self.recipe = msgspec.json.decode(note.read_bytes(), type=Recipe)
        except FileNotFoundError as error:
            raise DistillError(f"{folder}: expected data of `breakeven distill generate`, found none") from error
        except OSError as error:
            raise DistillError(f"{folder}: {error.strerror}") from error
        except msgspec.MsgspecError as error:
            raise DistillError(f"{note}: not a file of this command ({error})") from error
        if recipe is not None and recipe != self.recipe:
            raise DistillError(f"{folder}: {_difference(self.recipe, recipe)}; give another folder")

    def add(self, texts: list[Text]) -> None:
        """Write one shard."""
        number = max((int(path.stem) for path in self._paths()), default=-1) + 1
        path = self._shards / f"{number:05d}.safetensors"
        tensors = {
            "tokens": torch.cat([text.tokens for text in texts]).to(torch.int32),
            "features": torch.cat([text.features for text in texts]).to(torch.bfloat16),
        }
        entries = msgspec.json.encode([text.entry for text in texts]).decode()
        scratch = path.with_suffix(".part")
        try:
            save_file(tensors, scratch, metadata={"entries": entries})
            os.replace(scratch, path)
        except OSError as error:
            raise DistillError(f"{path}: cannot be written: {error.strerror}") from error

    def shards(self) -> list[Path]:
        """The files, oldest first; a running generation adds more."""
        return self._paths()

    def entries(self) -> list[Entry]:
        """What the folder holds, without reading the hidden states."""
        return [entry for path in self._paths() for entry in _entries(path)]

    @staticmethod
    def texts(path: Path) -> Iterator[Text]:
        """Yield the answers of one shard. Raises DistillError where it is damaged."""
        with _opened(path) as file:
            tokens, features = file.get_tensor("tokens").long(), file.get_tensor("features")
        start = 0
        for at, entry in enumerate(_entries(path)):
            begin = start - at  # every answer has one hidden state less than tokens
            yield Text(entry, tokens[start : start + entry.total], features[begin : begin + entry.total - 1])
            start += entry.total

    def _paths(self) -> list[Path]:
        return sorted(self._shards.glob("*.safetensors"))


def _entries(path: Path) -> list[Entry]:
    with _opened(path) as file:
        return msgspec.json.decode(file.metadata()["entries"], type=list[Entry])


def _opened(path: Path) -> safe_open:
    try:
        return safe_open(path, framework="pt")
    except Exception as error:
        raise DistillError(f"{path}: damaged ({error}); delete it and generate again") from error


def _difference(there: Recipe, wanted: Recipe) -> str:
    for name in Recipe.__struct_fields__:
        has, wants = getattr(there, name), getattr(wanted, name)
        if has != wants:
            return f"made with {name} {has}, this run has {wants}"
    return "made in another way"
