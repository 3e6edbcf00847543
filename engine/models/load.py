"""Loads target and draft: the built-in model, a local folder in Hugging Face's layout, or a hub id. Called at start."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from engine.config import EngineConfig
from engine.errors import ModelError
from engine.models import store
from engine.models.loaded import LoadedModel
from engine.models.locate import locate
from engine.models.notices import quiet
from engine.models.transfer import Progress
from engine.models.vocabulary import check_same_tokens

KV_MEMORY = 384 << 20
"""Bytes of KV cache that the default budget allows: with the built-in model the engine stays below 1.5 GiB."""


def load_models(config: EngineConfig, progress: Progress = store.no_progress) -> tuple[LoadedModel, LoadedModel | None]:
    """Load the target and, where one is configured, the draft. Raises ModelError (TokenizerMismatchError)."""
    quiet()
    target = load_model(config.model, config, progress)
    if config.draft_model is None:
        return target, None
    draft = target if config.draft_model == config.model else load_model(config.draft_model, config, progress)
    check_tokenizers(target, draft)
    return target, draft


def load_model(name: str, config: EngineConfig, progress: Progress = store.no_progress) -> LoadedModel:
    """Load one model. Raises ModelError naming the file, folder or id at fault."""
    device = pick_device(config.device)
    dtype = pick_dtype(config.dtype, device)
    source, label = locate(name, str(dtype).removeprefix("torch."), config.models_dir, progress)
    try:
        model_config = AutoConfig.from_pretrained(source)
        model = AutoModelForCausalLM.from_pretrained(source, config=model_config, dtype=dtype)
        tokenizer = AutoTokenizer.from_pretrained(source)
    except Exception as error:
        raise ModelError(f"cannot load the model {name}: {_first_line(error)}") from error
    module: torch.nn.Module = model
    module.to(device).eval().requires_grad_(False)
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        name=label,
        dtype=dtype,
        device=device,
        eos_ids=_eos_ids(model, tokenizer),
        max_len=_max_len(model, tokenizer),
        vocab_size=model.config.get_text_config().vocab_size,
    )


def check_tokenizers(target: LoadedModel, draft: LoadedModel) -> None:
    """Raise TokenizerMismatchError where the draft's tokens are not the target's."""
    padding = {loaded.tokenizer.pad_token for loaded in (target, draft)} - {None}
    check_same_tokens(
        target.tokenizer.get_vocab(),
        draft.tokenizer.get_vocab(),
        names=(target.name, draft.name),
        padding=frozenset(str(token) for token in padding),
    )


def kv_bytes_per_token(loaded: LoadedModel) -> int:
    """Return the KV cache's bytes for one token of one sequence."""
    text = loaded.model.config.get_text_config()
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return int(2 * text.num_hidden_layers * heads * width * loaded.dtype.itemsize)


def kv_budget(loaded: LoadedModel, max_batch: int, memory: int = KV_MEMORY) -> int:
    """Return how many tokens of KV cache `memory` bytes hold, no more than `max_batch` full windows can use."""
    return min(max(256, memory // kv_bytes_per_token(loaded)), max_batch * (loaded.max_len + 64))


def pick_device(device: str) -> torch.device:
    """Resolve `auto`, and refuse a device that is not there. Raises ModelError."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        torch.empty(1, device=chosen)
    except Exception as error:
        raise ModelError(f"device {device!r} cannot be used: {_first_line(error)}") from error
    return chosen


def pick_dtype(dtype: str, device: torch.device) -> torch.dtype:
    """Resolve `auto`: bfloat16 where it is multiplied in hardware, else float32."""
    if dtype != "auto":
        return torch.bfloat16 if dtype == "bfloat16" else torch.float32
    return torch.bfloat16 if device.type != "cpu" or cpu_has_bfloat16() else torch.float32


def cpu_has_bfloat16() -> bool:
    """Whether the CPU has AMX or AVX512-BF16."""
    flags: Mapping[str, Any] = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    if flags:
        return bool(flags.get("amx_bf16") or flags.get("avx512_bf16"))
    try:
        listed = Path("/proc/cpuinfo").read_text("utf-8").split()
    except OSError:
        return False
    return "amx_bf16" in listed or "avx512_bf16" in listed


def _eos_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Collect every end-of-sequence id that the model's files name."""
    ids: set[int] = set()
    for found in (
        model.generation_config.eos_token_id,
        model.config.get_text_config().eos_token_id,
        tokenizer.eos_token_id,
    ):
        ids |= set(found) if isinstance(found, (list, tuple)) else {found} if found is not None else set()
    return frozenset(ids)


def _max_len(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the smaller of the model's and the tokenizer's limit; tokenizers without one say 10^30."""
    own = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return int(min(own or 2048, tokenizer.model_max_length))


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
