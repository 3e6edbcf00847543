"""A standalone draft as a GGUF for llama.cpp, made with the target's own. Called by `breakeven distill export --gguf`.

Tokenizer, embedding and output matrix are copied from the target's file as they are, so that both agree on every token;
only the layers are the draft's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter

from engine.distill.standalone import own_names, read_standalone
from engine.errors import DistillError
from engine.models import LoadedModel

_PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_SHARED = ("token_embd.weight", "output.weight", "rope_freqs.weight")
"""What the draft has from the target."""


def write_gguf(path: Path, target: LoadedModel, target_gguf: Path, out: Path) -> None:
    """Write the draft `path` as `out`. Raises DistillError naming the file that does not fit."""
    model = read_standalone(path, target)
    source = _opened(target_gguf, model.config)
    tensors = {_name(name): _tensor(name, weight, model.config) for name, weight in _own(model).items()}
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        writer = GGUFWriter(out, "llama")
        for field in source.fields.values():
            _copy(writer, field, layers=int(model.config.num_hidden_layers))
        for tensor in source.tensors:
            if tensor.name in _SHARED:
                writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        for name, weight in tensors.items():
            kind = GGMLQuantizationType.F32 if weight.dim() == 1 else GGMLQuantizationType.F16
            writer.add_tensor(name, (weight if weight.dim() == 1 else weight.half()).numpy(), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    except OSError as error:
        raise DistillError(f"{out}: cannot be written: {error.strerror}") from error


def _opened(path: Path, config: Any) -> GGUFReader:  # noqa: ANN401 - transformers' configuration
    """The target's file, which must be of the same model."""
    try:
        source = GGUFReader(path)
        kind = source.fields["general.architecture"].contents()
        width, vocab = (int(size) for size in next(t for t in source.tensors if t.name == _SHARED[0]).shape)
    except (OSError, ValueError, LookupError, StopIteration) as error:
        raise DistillError(f"{path}: expected the target's GGUF ({error})") from error
    if kind != "llama" or config.model_type != "llama":
        raise DistillError(f"{path}: expected a model of the llama architecture, got {kind} for {config.model_type}")
    if (width, vocab) != (config.hidden_size, config.vocab_size):
        raise DistillError(
            f"{path}: expected {config.vocab_size} tokens of width {config.hidden_size}, got {vocab} of width {width}"
        )
    return source


def _own(model: Any) -> dict[str, torch.Tensor]:  # noqa: ANN401 - a transformers model
    state = model.state_dict()
    return {name: state[name].detach().float().contiguous() for name in own_names(model)}


def _name(name: str) -> str:
    """`model.layers.0.mlp.up_proj.weight` → `blk.0.ffn_up.weight`."""
    if name == "model.norm.weight":
        return "output_norm.weight"
    _, _, layer, rest = name.split(".", 3)
    part, kind = rest.rsplit(".", 1)
    if part not in _PARTS:
        raise DistillError(f"{name}: llama.cpp's llama architecture has no such weight")
    return f"blk.{layer}.{_PARTS[part]}.{kind}"


def _tensor(name: str, weight: torch.Tensor, config: Any) -> torch.Tensor:  # noqa: ANN401 - transformers' configuration
    """The weight as llama.cpp wants it: it turns neighbouring pairs of a head, transformers its two halves."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    found = next((count for part, count in heads.items() if part in name), None)
    if found is None:
        return weight
    paired = weight.view(found, 2, weight.shape[0] // found // 2, *weight.shape[1:])
    return paired.transpose(1, 2).reshape(weight.shape).contiguous()


def _copy(writer: GGUFWriter, field: Any, *, layers: int) -> None:  # noqa: ANN401 - gguf has no types
    """Copy one field of the target's header; the writer makes its own of the file's structure."""
    if field.name.startswith("GGUF.") or field.name == "general.architecture":
        return
    kind = field.types[0]
    value = layers if field.name == "llama.block_count" else field.contents()
    writer.add_key_value(field.name, value, kind, sub_type=field.types[-1] if kind == GGUFValueType.ARRAY else None)
