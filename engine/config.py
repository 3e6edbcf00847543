"""What one engine process is configured by; built by `cli/engine.py` and by tests, read by all of `engine/`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from engine.errors import EngineError

DType = Literal["auto", "float32", "bfloat16"]
DEFAULT_MODEL = "SmolLM2-135M-Instruct"
"""The model that needs no configuration; fetched by `breakeven models fetch`."""


class ConfigError(EngineError):
    """An option of the engine is malformed; the message names the option and what was expected."""


def default_threads() -> int:
    """Leave one core to the gateway: two torch threads beside any busy process collapse."""
    return max(1, (os.cpu_count() or 1) - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Options of one engine process. Raises ConfigError where a value cannot be used."""

    model: str = DEFAULT_MODEL
    """The built-in model's name, a local folder in Hugging Face's layout, or a hub id."""
    draft_model: str | None = None
    """The same for the draft; None: `draft_model` speculation is not offered."""
    draft_head: str | None = None
    """A feature-fed head's file, or `auto`: the one that comes with the built-in model. None: no `eagle` is offered."""
    models_dir: str | None = None
    """Where fetched and converted models are kept; None: `BREAKEVEN_MODELS_DIR`, else the user's cache folder."""
    dtype: DType = "auto"
    """auto: bfloat16 where the CPU multiplies it in hardware or on a GPU, else float32."""
    device: str = "auto"
    """auto: the first GPU, else the CPU. Otherwise a torch device (`cpu`, `cuda`, `cuda:1`)."""
    threads: int = 0
    """torch threads; 0: all cores but one."""
    max_batch: int = 32
    """Sequences that decode together at most."""
    kv_tokens: int = 8_192
    """KV budget in tokens over all sequences, prompts included (`engine.models.kv_budget` derives it from memory)."""
    prefill_chunk: int = 128
    """Prompt tokens that one step takes in at most, so that a long prompt does not stall running requests."""
    max_waiting: int = 256
    """Requests that may wait; one more is refused with 503."""
    max_k: int = 16
    """Largest draft length that a request may ask for."""
    max_model_len: int | None = None
    """Context window in tokens; None: the model's own, cut to the KV budget."""
    suffix_store_tokens: int = 0
    """Past output tokens kept per cache key for suffix proposals; 0 keeps to the request's own text."""
    prefix_reuse: bool = True
    """Whether a conversation's next turn may reuse the KV of the last one (within one cache key)."""
    profile: bool = True
    """Whether step costs are profiled in idle gaps after start."""
    costs_out: str | None = None
    """Where the simulator's cost file is written once step costs are profiled, and at exit; None: nowhere."""
    synthetic_acceptance: str | None = None
    """A JSON file of acceptance probabilities by task for load tests without real weights; None in earnest."""
    static_shapes: bool | None = None
    """Whether short rows run in passes of few shapes, as CUDA graphs where there is a GPU; None: on a GPU."""
    seed: int = 0
    """Seeds the requests that bring none, together with a per-process counter."""

    def __post_init__(self) -> None:
        if self.dtype not in get_args(DType):
            raise ConfigError(f"dtype: expected one of {', '.join(get_args(DType))}, got {self.dtype!r}")
        if self.threads < 0:
            raise ConfigError(f"threads: expected 0 (all cores but one) or more, got {self.threads}")
        at_least_one = ("max_batch", "kv_tokens", "prefill_chunk", "max_waiting", "max_k")
        for name in at_least_one:
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: expected at least 1, got {getattr(self, name)}")
        if self.max_k > 64:
            raise ConfigError(f"max_k: expected at most 64, got {self.max_k}")
        if self.max_model_len is not None and self.max_model_len < 2:
            raise ConfigError(f"max_model_len: expected at least 2, got {self.max_model_len}")
        if self.costs_out is not None and not (
            Path(self.costs_out).parent.is_dir() and not Path(self.costs_out).is_dir()
        ):
            raise ConfigError(f"costs_out: expected a file in a folder that exists, got {self.costs_out!r}")
        if self.suffix_store_tokens < 0:
            raise ConfigError(f"suffix_store_tokens: expected 0 or more, got {self.suffix_store_tokens}")

    def together(self, device_type: str) -> int:
        """Rows that get a place in a slab that never moves, which static shapes need; 0: none."""
        static = device_type == "cuda" if self.static_shapes is None else self.static_shapes
        return self.max_batch if static else 0

    @property
    def num_threads(self) -> int:
        """The torch threads to use."""
        return self.threads or default_threads()
