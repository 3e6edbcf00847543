"""A lean forward pass for Llama-shaped models (Llama, SmolLM2, Mistral, Qwen2, Qwen3). Picked by `make_runner`.

The same sums as transformers' model code with less around them: query, key and value in one product, gate and up in
another, weights laid out once for the CPU's kernels, rotary tables computed once. Tests hold it to
transformers' logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from engine.attention import Attending, PackedBatch, RowInput

if TYPE_CHECKING:
    from engine.kv_cache import KVShape
    from engine.models import LoadedModel

MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")
_FIXED_ROPE = ("default", "linear", "llama3", "yarn")
"""Rotary embeddings whose angles do not depend on the length of the sequence."""


def is_lean(loaded: LoadedModel) -> bool:
    """Whether this runner computes the model."""
    config: Any = loaded.model.config
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    return (
        config.model_type in MODEL_TYPES
        and getattr(config, "hidden_act", "") == "silu"
        and rope.get("rope_type", "default") in _FIXED_ROPE
    )


class Linear:
    """One matrix product, its weight laid out for oneDNN on a CPU: twice as fast from two rows on."""

    __slots__ = ("_bias", "_packed", "_weight", "columns")

    def __init__(self, *modules: torch.nn.Linear, twice: bool = False) -> None:
        """Join the modules' outputs; `twice` keeps another copy where single rows gain by it (float32 on a CPU)."""
        weights = [module.weight.detach() for module in modules]
        biases: list[torch.Tensor] = [module.bias.detach() for module in modules if _has_bias(module)]
        self._weight = weights[0] if len(weights) == 1 else torch.cat(weights)
        self._bias = torch.cat(biases) if biases else None
        self._packed = _pack(self._weight)
        self.columns: torch.Tensor | None = None
        """The transposed weight [in, out], read at twice the speed of the packed one by a single row."""
        if twice and self._packed is not None and self._weight.dtype == torch.float32:
            self.columns = self._weight.t().contiguous()
        if self._packed is not None:
            self._weight = self._weight.new_empty(0)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return x · Wᵀ + b for x [tokens, in]."""
        if self._packed is None:
            return functional.linear(x, self._weight, self._bias)
        tokens = x.shape[0]
        if tokens == 1 and self.columns is not None:
            return x @ self.columns if self._bias is None else torch.addmm(self._bias, x, self.columns)
        padding = padded(tokens) - tokens
        if padding:
            x = functional.pad(x, (0, 0, 0, padding))
        out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "none", [], "")
        return out.narrow(0, 0, tokens) if padding else out


def padded(tokens: int) -> int:
    """Return the number of rows at which a packed product of `tokens` rows is run.

    oneDNN compiles code for each size it meets (on the built-in model 1.2 ms and 0.8 MB a product), and ragged batches
    would meet hundreds. Small sizes stay exact; rows of zeros above cost less than what they save. Two and three rows
    take longer than four, and twelve (eight requests, half of them with a draft of one) hardly longer than eight.
    """
    if tokens in {2, 3}:
        return 4
    step = 1 if tokens <= 8 else 4 if tokens <= 24 else 8 if tokens <= 64 else 32 if tokens <= 256 else 128
    return -(-tokens // step) * step


def _has_bias(module: Any) -> bool:  # noqa: ANN401 - typed by torch as if every linear layer had one
    return module.bias is not None


def _pack(weight: torch.Tensor) -> torch.Tensor | None:
    """Return the weight in oneDNN's own layout, or None where torch does not offer that here."""
    if weight.device.type != "cpu" or weight.dtype not in {torch.bfloat16, torch.float32}:
        return None
    try:
        packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight)
    except (AttributeError, RuntimeError, TypeError):  # operators inside torch: absent or changed in another version
        return None
    return packed


class Norm:
    """Root-mean-square norm over the last dimension.

    torch computes it by seven kernels on a CPU, but the layer norm by one: that of (x, −x), whose mean is 0 and whose
    variance is x's mean square, is the same number. Used in bfloat16, where the two agree but for the last bit.
    """

    __slots__ = ("_eps", "_mirrored", "_weight", "_width")

    def __init__(self, module: Any) -> None:  # noqa: ANN401 - every model of transformers has a class of its own
        self._weight: torch.Tensor = module.weight.detach()
        self._eps = float(module.variance_epsilon)
        self._width = self._weight.shape[0]
        self._mirrored = None
        if self._weight.device.type == "cpu" and self._weight.dtype == torch.bfloat16:
            self._mirrored = torch.cat((self._weight, self._weight))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the normed x."""
        if self._mirrored is None:
            return functional.rms_norm(x, (self._width,), self._weight, self._eps)
        both = torch.cat((x, -x), dim=-1)
        normed = functional.layer_norm(both, (2 * self._width,), self._mirrored, None, self._eps)
        return normed[..., : self._width]


class _Layer:
    """Weights of one decoder layer."""

    __slots__ = ("down", "gate_up", "input_norm", "key_norm", "out", "post_norm", "qkv", "query_norm", "window")

    def __init__(self, layer: Any) -> None:  # noqa: ANN401 - a decoder layer of transformers
        attention, mlp = layer.self_attn, layer.mlp
        self.qkv = Linear(attention.q_proj, attention.k_proj, attention.v_proj)
        self.out = Linear(attention.o_proj)
        self.gate_up = Linear(mlp.gate_proj, mlp.up_proj)
        self.down = Linear(mlp.down_proj)
        self.input_norm = Norm(layer.input_layernorm)
        self.post_norm = Norm(layer.post_attention_layernorm)
        query_norm, key_norm = getattr(attention, "q_norm", None), getattr(attention, "k_norm", None)
        self.query_norm = Norm(query_norm) if query_norm is not None else None
        self.key_norm = Norm(key_norm) if key_norm is not None else None
        self.window: int | None = getattr(attention, "sliding_window", None)


class LeanRunner:
    """Implements `engine.model_runner.ModelRunner` without transformers' per-layer work."""

    def __init__(self, loaded: LoadedModel, kv_shape: KVShape) -> None:
        model: Any = loaded.model
        config = model.config
        self.kv_shape = kv_shape
        self.vocab_size = loaded.vocab_size
        self.taps: tuple[int, ...] = ()
        self.features: torch.Tensor | None = None
        self._device = torch.device(loaded.device)
        self._embed = model.model.embed_tokens.weight.detach()
        with torch.inference_mode():
            self._layers = [_Layer(layer) for layer in model.model.layers]
            tied = model.lm_head.weight is model.model.embed_tokens.weight
            self._head = Linear(model.lm_head, twice=tied)  # tokens are looked up in the copy: no more memory
        self._norm = Norm(model.model.norm)
        self._heads = int(config.num_attention_heads)
        if config.model_type == "mistral":
            for layer in self._layers:
                layer.window = config.sliding_window
        self._rotary = model.model.rotary_emb
        self._cos = self._sin = torch.empty(0)
        self._extend_rotary(1024)

    @torch.inference_mode()
    def forward(self, rows: Sequence[RowInput]) -> torch.Tensor:
        """Run all new tokens of all rows in one pass."""
        batch = PackedBatch(rows, self._device)
        if batch.longest > self._cos.shape[0]:
            self._extend_rotary(batch.longest)
        x, self.features = self.hidden(batch.input_ids, batch.positions, batch)
        batch.commit()
        if not batch.all_wanted:
            x = x[batch.wanted]
        return self.logits(x)

    def hidden(
        self, ids: torch.Tensor, positions: torch.Tensor, batch: Attending
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the last layer's output [tokens, width] and the tapped layers' outputs beside one another."""
        rotary = self._cos[positions], self._sin[positions]
        x = self._embedded(ids)
        tapped = []
        for number, layer in enumerate(self._layers):
            x = self._layer(number, layer, x, batch, rotary)
            if number + 1 in self.taps:
                tapped.append(x)
        return x, torch.cat(tapped, dim=-1) if tapped else None

    def _embedded(self, ids: torch.Tensor) -> torch.Tensor:
        """Look tokens up, in the head's copy where that is the same matrix: one less stays in memory."""
        if self._head.columns is not None:
            return self._head.columns.index_select(1, ids).t().contiguous()
        return functional.embedding(ids, self._embed)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the logits [tokens, vocabulary] of the last layer's output."""
        return self._head(self._norm(hidden))

    def _layer(
        self, number: int, layer: _Layer, x: torch.Tensor, batch: Attending, rotary: tuple[torch.Tensor, torch.Tensor]
    ) -> torch.Tensor:
        """One decoder layer over hidden states [tokens, width]."""
        size = x.shape[0]
        kv_heads, dim = self.kv_shape.heads, self.kv_shape.head_dim
        hidden = layer.input_norm(x)
        qkv = layer.qkv(hidden).view(size, self._heads + 2 * kv_heads, dim)
        turned = qkv[:, : self._heads + kv_heads]
        if layer.query_norm is not None and layer.key_norm is not None:
            query, key = turned[:, : self._heads], turned[:, self._heads :]
            turned = torch.cat((layer.query_norm(query), layer.key_norm(key)), dim=1)
        turned = _rotate(turned, *rotary)
        attended = batch.attend(
            number,
            turned[:, : self._heads],
            turned[:, self._heads :],
            qkv[:, self._heads + kv_heads :],
            dim**-0.5,
            layer.window,
        )
        x = x + layer.out(attended)
        hidden = layer.post_norm(x)
        gate, up = layer.gate_up(hidden).chunk(2, dim=-1)
        return x + layer.down(functional.silu(gate).mul_(up))

    def _extend_rotary(self, length: int) -> None:
        """Tabulate cosines and signed sines [positions, 1, head_dim] for at least `length` positions."""
        length = max(length, 2 * self._cos.shape[0])
        with torch.inference_mode():
            probe = torch.empty(1, dtype=self.kv_shape.dtype, device=self._device)
            positions = torch.arange(length, device=self._device).unsqueeze(0)
            cos, sin = self._rotary(probe, positions)
            half = sin.shape[-1] // 2
            self._cos = cos[0].unsqueeze(1).contiguous()
            self._sin = torch.cat((-sin[0, :, :half], sin[0, :, half:]), dim=-1).unsqueeze(1).contiguous()


def _rotate(x: torch.Tensor, cos: torch.Tensor, signed_sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of x [tokens, heads, dim]: halves swapped by a roll, the sign is in the sine."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, dims=-1), signed_sin)
