"""A model ready to run; made by `engine/models/load.py`, used by the core and the server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True, eq=False)
class LoadedModel:
    """A causal LM, its tokenizer and the facts about both that the engine needs."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str
    """The id under which it is served."""
    dtype: torch.dtype
    device: torch.device
    eos_ids: frozenset[int]
    """Any of these ends a sequence."""
    max_len: int
    """Context window in tokens, prompt and output together."""
    vocab_size: int
    """Width of the logits; may exceed the tokenizer's by padding."""
