"""A feature-fed draft on disk: one safetensors file with its shape in the header. Written by `engine/distill`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from engine.errors import ModelError

if TYPE_CHECKING:
    from engine.models import LoadedModel


class HeadShape(msgspec.Struct, frozen=True):
    """What a head was made for, and its sizes."""

    target: str
    """Name of the model whose hidden states it reads."""
    taps: tuple[int, ...]
    """Layers of the target, counted from 1, whose outputs it reads."""
    width: int
    """Size of a hidden state, the target's."""
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    """Size of the feed-forward layer."""
    vocab: int
    """Tokens that it can propose."""
    eps: float
    rope_theta: float
    licence: str = ""
    """Under which it is given away, for instance `Apache-2.0`."""

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Name → shape of every tensor in the file."""
        width, taps = self.width, len(self.taps)
        return {
            "fuse.weight": (width, taps * width),
            "join.weight": (width, 2 * width),
            "query.weight": (self.heads * self.head_dim, width),
            "key.weight": (self.kv_heads * self.head_dim, width),
            "value.weight": (self.kv_heads * self.head_dim, width),
            "out.weight": (width, self.heads * self.head_dim),
            "gate.weight": (self.inner, width),
            "up.weight": (self.inner, width),
            "down.weight": (width, self.inner),
            "feature_norm": (taps * width,),
            "token_norm": (width,),
            "state_norm": (width,),
            "attention_norm": (width,),
            "inner_norm": (width,),
            "last_norm": (width,),
            "vocab": (self.vocab,),
        }


@dataclass(frozen=True, slots=True)
class HeadFile:
    """A head as read: weights as stored (bfloat16), the vocabulary as ids of the target's tokens."""

    shape: HeadShape
    weights: dict[str, torch.Tensor]


SHIPPED = Path(__file__).parent.parent / "drafts"
"""Heads that come with the program, by the name of their target."""


def find_head(wish: str | None, target: str) -> Path | None:
    """From an option to a file: None or `none` is no head, `auto` the target's shipped one, where there is one."""
    if wish is None or wish == "none":
        return None
    if wish != "auto":
        return Path(wish).expanduser()
    shipped = SHIPPED / target / "eagle.safetensors"
    return shipped if shipped.is_file() else None


def write_head(path: Path, head: HeadFile) -> None:
    """Write a head, weights in bfloat16. Raises OSError."""
    tensors = {
        name: (tensor.to(torch.int32) if name == "vocab" else tensor.to(torch.bfloat16)).contiguous()
        for name, tensor in head.weights.items()
    }
    save_file(tensors, path, metadata={"head": msgspec.json.encode(head.shape).decode()})


def read_head(path: Path) -> HeadFile:
    """Read a head. Raises ModelError naming the file and what is wrong with it."""
    if not path.is_file():
        raise ModelError(f"no draft head {path}: expected a file made by `breakeven distill train`")
    try:
        with safe_open(path, framework="pt") as file:
            note = (file.metadata() or {}).get("head", "")
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        shape = msgspec.json.decode(note, type=HeadShape)
    except msgspec.MsgspecError as error:
        raise ModelError(f"{path}: not a draft head ({error})") from error
    except Exception as error:
        raise ModelError(f"{path}: damaged ({error})") from error
    found = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    for name, wanted in shape.tensors().items():
        if found.get(name) != wanted:
            raise ModelError(f"{path}: {name}: expected shape {list(wanted)}, got {found.get(name)}")
    return HeadFile(shape, weights)


def check_head(head: HeadFile, target: LoadedModel, where: str) -> None:
    """Raise ModelError where a head was made for a target of another shape."""
    config = target.model.config.get_text_config()
    if int(config.hidden_size) != head.shape.width or int(config.num_hidden_layers) < max(head.shape.taps):
        raise ModelError(
            f"{where}: made for {head.shape.target} (width {head.shape.width}, {max(head.shape.taps)} layers), "
            f"not for {target.name} (width {config.hidden_size}, {config.num_hidden_layers} layers)"
        )
    largest = int(head.weights["vocab"].max())
    if largest >= target.vocab_size:
        raise ModelError(f"{where}: proposes token {largest}, and {target.name} has {target.vocab_size} tokens")
