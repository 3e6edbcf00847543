"""A standalone draft as it is trained: the first layers of the target under its own embedding, norm and output matrix.

It reads tokens only, so that any engine with draft models can run it (method `draft_model`). Trained are its layers and
norm; what is kept of it is these, and `export` adds the target's embedding and output matrix again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional
from transformers import AutoModelForCausalLM, PreTrainedModel

from engine.distill.lessons import Batch
from engine.distill.of_target import matrices
from engine.errors import DistillError
from engine.models import LoadedModel


def shallow(target: LoadedModel, layers: int) -> PreTrainedModel:
    """A float32 model of the target's kind: its first `layers` layers, embedding, norm and output matrix."""
    factory: Any = AutoModelForCausalLM
    config: Any = type(target.model.config).from_dict(target.model.config.to_dict())
    if not 1 <= layers < config.num_hidden_layers:
        raise DistillError(f"layers: expected 1 to {config.num_hidden_layers - 1}, got {layers}")
    config.num_hidden_layers = layers
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:layers]
    model: PreTrainedModel = factory.from_config(config, dtype=torch.float32)
    model.load_state_dict(target.model.state_dict(), strict=False)
    model.tie_weights()
    return model


def own_names(model: PreTrainedModel) -> list[str]:
    """Names of the weights that are not the target's: layers and the last norm."""
    whole: Any = model
    shared = {id(whole.get_input_embeddings().weight), id(whole.get_output_embeddings().weight)}
    return [name for name, weight in model.named_parameters() if id(weight) not in shared]


class StandaloneDraft(nn.Module):
    """The trainable draft. Its loss is taken over the `vocab` tokens in use, the full output matrix being too slow."""

    vocab: torch.Tensor
    _output: torch.Tensor

    def __init__(self, target: LoadedModel, layers: int, vocab: torch.Tensor) -> None:
        super().__init__()
        self.model = shallow(target, layers)
        self._target = target.name
        self._own = own_names(self.model)
        for name, weight in self.model.named_parameters():
            weight.requires_grad_(name in self._own)
        self.register_buffer("vocab", vocab)
        self.register_buffer("_output", matrices(target)[1][vocab].float(), persistent=False)

    def steps(self, batch: Batch, count: int) -> Iterator[torch.Tensor]:
        """Logits [rows, answers, vocab], the same for every step of a draft that has been right so far."""
        ids = torch.cat((batch.first.unsqueeze(1), batch.tokens), dim=1).to(self._output.device)
        model: Any = self.model
        states = model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state[:, 1 + batch.start :]
        logits = self.output(states)
        for _ in range(count):
            yield logits

    def chained(self, batch: Batch, count: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:  # noqa: ARG002 - protocol
        """Logits [n, vocab] and flat places [n] once: later steps are the same."""
        used = ((batch.weight > 0) & (batch.said >= 0)).to(self._output.device).flatten()
        logits = next(self.steps(batch, 1)).flatten(0, 1)
        yield logits[used], used.nonzero().squeeze(-1)

    def output(self, normed: torch.Tensor) -> torch.Tensor:
        """Logits [..., vocab] of normed states."""
        return functional.linear(normed, self._output)

    def weights(self) -> dict[str, torch.Tensor]:
        """What training changes, by name."""
        return {name: weight for name, weight in self.named_parameters() if weight.requires_grad}

    def write(self, path: Path) -> None:
        """Write what is the draft's own, in bfloat16."""
        state = self.model.state_dict()
        tensors = {name: state[name].detach().cpu().to(torch.bfloat16).contiguous() for name in self._own}
        note = {"target": self._target, "layers": self.model.config.num_hidden_layers}
        save_file(tensors, path, metadata={"standalone": json.dumps(note)})


def read_standalone(path: Path, target: LoadedModel) -> PreTrainedModel:
    """A written draft made whole with the target's weights, in float32. Raises DistillError naming the file."""
    if not path.is_file():
        raise DistillError(f"no draft {path}: expected a file made by `breakeven distill train --kind standalone`")
    try:
        with safe_open(path, framework="pt") as file:
            note = json.loads((file.metadata() or {})["standalone"])
            tensors = {name: file.get_tensor(name).float() for name in file.keys()}  # noqa: SIM118 - no mapping
        layers = int(note["layers"])
    except (SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
        raise DistillError(f"{path}: not a standalone draft ({error})") from error
    model = shallow(target, layers)
    wanted = own_names(model)
    if sorted(tensors) != sorted(wanted):
        raise DistillError(f"{path}: made for {note['target']}, its weights do not fit {target.name}")
    try:
        model.load_state_dict(tensors, strict=False)
    except RuntimeError as error:
        raise DistillError(f"{path}: made for {note['target']}, its weights do not fit {target.name}") from error
    return model


def export(path: Path, target: LoadedModel, folder: Path) -> None:
    """Write a draft as a model folder in Hugging Face's layout, tokenizer included. Raises DistillError."""
    model: Any = read_standalone(path, target)
    model.to(target.dtype)
    model.generation_config = target.model.generation_config
    try:
        model.save_pretrained(folder)
        target.tokenizer.save_pretrained(folder)
    except OSError as error:
        raise DistillError(f"{folder}: cannot be written: {error.strerror}") from error
