"""Plain, speculative and mixed batches of a large random model under synthetic acceptance, against memory bandwidth."""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.messages import Speculation
from engine.models import LoadedModel
from engine.sequence import GenerateRequest, SamplingParams

SHAPES: dict[str, dict[str, int]] = {
    "8b": {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128_256,
    },
    "small": {
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 512,
    },
}
PROFILES = {"*": [0.6, 0.55, 0.5, 0.5], "code": [0.85, 0.8, 0.75, 0.75], "creative": [0.3, 0.25, 0.2, 0.2]}
"""Acceptance by task: round figures, not measurements."""
CONTEXT = 256
K = 4


def random_model(shape: str, device: torch.device) -> LoadedModel:
    """Return a model with random bfloat16 weights, made where it is used."""
    config = LlamaConfig(**SHAPES[shape], max_position_embeddings=4096, tie_word_embeddings=False)
    with torch.device(device):
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16)
        try:
            model: Any = LlamaForCausalLM(config)
        finally:
            torch.set_default_dtype(before)
    tokenizer: Any = _NumberTokenizer()
    window, vocab = config.max_position_embeddings, config.vocab_size
    return LoadedModel(model, tokenizer, f"random-{shape}", torch.bfloat16, device, frozenset({0}), window, vocab)


class _NumberTokenizer:
    """Decodes a token to its number: random weights have nothing to say."""

    def decode(self, ids: list[int], **_: object) -> str:
        return "".join(f"{token} " for token in ids)


def bandwidth(device: torch.device) -> float:
    """Bytes a second at which the device reads memory, the best of several."""
    size = 2**30 if device.type == "cuda" else 2**27
    data = torch.ones(size, dtype=torch.int8, device=device).view(torch.int64)
    best = float("inf")
    for _ in range(5):
        _wait(device)
        started = time.perf_counter()
        data.max()
        _wait(device)
        best = min(best, time.perf_counter() - started)
    return size / best


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_per_token(
    core: EngineCore, batch: int, arms: list[tuple[Speculation, str]], count: int
) -> dict[str, float]:
    """Decode a batch whose rows take the arms in turn; median seconds a token by arm, after the prompts."""
    names: dict[str, str] = {}
    for at, (arm, task) in zip(range(batch), itertools.cycle(arms), strict=False):
        name = f"{time.monotonic_ns()}-{at}"
        names[name] = f"{arm.method}-k{arm.k} {task}"
        params = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)
        prompt = [3 + (at * 7 + i) % 400 for i in range(CONTEXT)]
        core.add(GenerateRequest(name, prompt, params, arm, cache_key=name, task=task))
    spent: dict[str, list[float]] = {}
    while core.has_work():
        for output in core.step():
            if output.finish_reason and output.metrics and output.metrics.breakeven:
                own = output.metrics.breakeven
                total = own.draft_s + own.verify_s + own.plain_s
                spent.setdefault(names[output.request_id], []).append(total / max(1, sum(own.emitted)))
    return {name: statistics.median(values) for name, values in spent.items()}


def measure(shape: str, device: torch.device, batches: list[int], limit_s: float) -> dict[str, Any]:
    """All figures that fit into the time limit."""
    began = time.perf_counter()
    model = random_model(shape, device)
    reading = sum(weight.numel() * 2 for weight in model.model.parameters()) / bandwidth(device)
    figures: dict[str, Any] = {"shape": shape, "device": str(device), "weight_reading_ms": round(reading * 1e3, 3)}
    figures["graphs"] = device.type == "cuda"
    plain = (Speculation("plain", 0), "*")
    with tempfile.TemporaryDirectory() as folder:
        profile = Path(folder) / "acceptance.json"
        profile.write_text(json.dumps(PROFILES))
        tokens = (CONTEXT + 256) * (max(batches) + 1)  # a quarter stays free for rows that outgrow their place
        config = EngineConfig(
            kv_tokens=tokens,
            max_batch=max(batches),
            max_waiting=512,
            profile=False,
            synthetic_acceptance=str(profile),
            static_shapes=True,
            prefix_reuse=False,
        )
        core = EngineCore(model, config)
        kinds = {
            "plain": [plain],
            "speculative": [(Speculation("ngram", K), task) for task in ("code", "creative")],
            "mixed": [plain, (Speculation("ngram", K), "code")],
        }
        seconds_per_token(core, 1, [plain], 8)
        for batch, (kind, arms) in itertools.product(batches, kinds.items()):
            if time.perf_counter() - began > limit_s:
                figures["cut_short"] = True
                break
            spent = seconds_per_token(core, batch, arms, 48)
            name = f"batch_{batch}_{kind}"
            figures[name] = {arm: round(value * 1e3, 3) for arm, value in spent.items()}
            print(name, figures[name], file=sys.stderr, flush=True)
    for batch in batches:
        if (own := figures.get(f"batch_{batch}_plain")) is not None:
            figures[f"batch_{batch}_plain_over_reading"] = round(min(own.values()) / (reading * 1e3), 2)
    return figures


def main() -> None:
    """Print the figures as one JSON object on the last line; unit: milliseconds a token."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="8b")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batches", default="1,4,16,64,128", help="comma-separated")
    parser.add_argument("--limit-s", type=float, default=400.0, help="no new batch is begun after this")
    args = parser.parse_args()
    batches = [int(one) for one in args.batches.split(",")]
    print(json.dumps(measure(args.shape, torch.device(args.device), batches, args.limit_s)))


if __name__ == "__main__":
    main()
