"""Turns a GGUF into folders in Hugging Face's layout, one per dtype. Run as a process by `store.py`.

A process of its own, because dequantising leaves more memory behind than the engine may hold.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from gguf import GGUFReader
from safetensors.torch import save_file
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from engine.models.notices import quiet
from engine.models.paths import replacing_folder
from engine.models.store import MANIFEST
from engine.models.transfer import sha256_of

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def main(gguf: Path, folder: Path) -> None:
    """Write `folder/float32` and `folder/bfloat16` from the GGUF."""
    quiet()
    options: dict[str, Any] = {}
    if hasattr(transformers, "GgufConfig"):  # 5.24 keeps the blocks packed unless told otherwise; before, always dense
        options["quantization_config"] = transformers.GgufConfig(dequantize=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32, **options
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    _name_special_tokens(tokenizer, gguf)
    source = sha256_of(gguf)
    for name, dtype in DTYPES.items():
        with replacing_folder(folder / name) as scratch:
            save(_cast(model, dtype), tokenizer, scratch)
            write_manifest(scratch, source)


def _name_special_tokens(tokenizer: PreTrainedTokenizerBase, gguf: Path) -> None:
    """Take the special tokens from the file itself: some releases of transformers take the first for the last."""
    fields = GGUFReader(gguf).fields
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        field = fields.get(f"tokenizer.ggml.{key}_token_id")
        if field is not None:
            setattr(tokenizer, f"{name}_token", tokenizer.convert_ids_to_tokens(int(field.contents())))


def _cast(model: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    module: torch.nn.Module = model
    module.to(dtype)
    return model


def save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write weights, configuration and tokenizer; the weights from the state dict, which any release can do."""
    config = model.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.dtype = model.dtype
    config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    state: dict[str, torch.Tensor] = model.state_dict()
    if config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    dense = {name: tensor.contiguous() for name, tensor in state.items()}
    save_file(dense, folder / "model.safetensors", metadata={"format": "pt"})


def write_manifest(folder: Path, source: str) -> None:
    """Record what the folder holds, so that a later start can tell whether it still does."""
    files = {
        path.name: {"size": path.stat().st_size, "sha256": sha256_of(path)}
        for path in sorted(folder.iterdir())
        if path.name != MANIFEST
    }
    for path in folder.iterdir():
        path.chmod(0o644)
    (folder / MANIFEST).write_text(json.dumps({"source_sha256": source, "files": files}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
