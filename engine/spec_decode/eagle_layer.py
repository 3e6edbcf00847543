"""The feature-fed head's forward pass over packed rows, with a KV cache of its own. Called by `eagle.py`.

What it computes is described in `engine/distill/head.py`, by which it is trained; a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn import functional

from engine.attention import PackedBatch, RowInput
from engine.kv_cache import KVShape
from engine.lean_runner import Linear, Norm
from engine.models import LoadedModel
from engine.spec_decode.half_linear import half_linear
from engine.spec_decode.head_file import HeadFile


class EagleLayer:
    """One head, laid out for its target's device and precision."""

    def __init__(self, head: HeadFile, target: LoadedModel) -> None:
        shape = self._shape = head.shape
        self.taps = shape.taps
        self._dtype, self._device = target.model.dtype, torch.device(target.device)
        weights = {name: tensor.to(self._device, self._dtype) for name, tensor in head.weights.items()}
        vocab = head.weights["vocab"].to(self._device, torch.long)
        self.vocab = vocab
        """[proposable tokens]: ids in the target's vocabulary."""
        self.kv_shape = KVShape(1, shape.kv_heads, shape.head_dim, self._dtype, self._device)
        model: Any = target.model
        self._embedding: torch.Tensor = model.get_input_embeddings().weight.detach()
        with torch.inference_mode():
            self._fuse, self._join, self._qkv, self._out, self._gate_up, self._down = (
                _product(torch.cat([weights[f"{name}.weight"] for name in names]))
                for names in (["fuse"], ["join"], ["query", "key", "value"], ["out"], ["gate", "up"], ["down"])
            )
            self._head = _product(model.get_output_embeddings().weight.detach()[vocab])
        self._feature_norm = weights["feature_norm"]
        norms = ("token_norm", "state_norm", "attention_norm", "inner_norm", "last_norm")
        self._norms = {name: Norm(SimpleNamespace(weight=weights[name], variance_epsilon=shape.eps)) for name in norms}
        self._cos = self._sin = torch.empty(0)
        self._extend(1024)

    @torch.inference_mode()
    def fuse(self, features: torch.Tensor) -> torch.Tensor:
        """The target's hidden states [tokens, taps · width] as states [tokens, width]."""
        taps = features.view(len(features), len(self._shape.taps), self._shape.width)
        normed = functional.rms_norm(taps, (self._shape.width,), eps=self._shape.eps).flatten(1)
        return self._fuse(normed * self._feature_norm)

    def no_state(self) -> torch.Tensor:
        """A state of zeros [1, width], for timing without a text."""
        return torch.zeros(1, self._shape.width, dtype=self._dtype, device=self._device)

    @torch.inference_mode()
    def forward(self, rows: Sequence[RowInput], states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Read each row's tokens with the states [tokens, width] of those before them; advances the rows' KV.

        Returns logits [Σ num_logits, proposable tokens] and the new states [Σ num_logits, width].
        """
        batch = PackedBatch(rows, self._device)
        longest = max(row.kv.length + len(row.tokens) for row in rows)
        if longest > self._cos.shape[0]:
            self._extend(longest)
        cos, sin = self._cos[batch.positions], self._sin[batch.positions]
        token = self._norms["token_norm"](functional.embedding(batch.input_ids, self._embedding))
        x = self._join(torch.cat((token, self._norms["state_norm"](states)), dim=-1))
        heads, kv_heads, dim = self._shape.heads, self._shape.kv_heads, self._shape.head_dim
        qkv = self._qkv(self._norms["attention_norm"](x)).view(len(x), heads + 2 * kv_heads, dim)
        turned = qkv[:, : heads + kv_heads]
        turned = torch.addcmul(turned * cos, turned.roll(dim // 2, dims=-1), sin)
        value = qkv[:, heads + kv_heads :]
        x = x + self._out(batch.attend(0, turned[:, :heads], turned[:, heads:], value, dim**-0.5))
        batch.commit()
        if not batch.all_wanted:
            x = x[batch.wanted]
        gate, up = self._gate_up(self._norms["inner_norm"](x)).chunk(2, dim=-1)
        x = x + self._down(functional.silu(gate).mul_(up))
        return self._head(self._norms["last_norm"](x)), x

    def _extend(self, length: int) -> None:
        """Tabulate cosines and signed sines [positions, 1, head_dim]."""
        length = max(length, 2 * self._cos.shape[0])
        exponents = torch.arange(0, self._shape.head_dim, 2).float() / self._shape.head_dim
        angles = torch.outer(torch.arange(length).float(), self._shape.rope_theta**-exponents)
        cos, sin = torch.cat((angles, angles), -1).cos(), torch.cat((-angles, angles), -1).sin()
        self._cos = cos.unsqueeze(1).to(self._device, self._dtype)
        self._sin = sin.unsqueeze(1).to(self._device, self._dtype)


def _product(weight: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the product with weight [out, in], by what reads it quickest."""
    half = half_linear(weight)
    if half is not None:
        return half
    module = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    module.weight = torch.nn.Parameter(weight, requires_grad=False)
    return Linear(module)
