"""The real model in bfloat16, which is not batch-invariant: outputs may part only where the two best nearly tie."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch

from engine.config import EngineConfig
from engine.models import LoadedModel
from engine.models.load import load_models
from engine.sequence import GenerateRequest
from tests.fixtures.core import make_core, request, run
from tests.fixtures.results import keep_result

QUESTIONS = (
    "What is the capital of France?",
    "Write a story about a dragon who is afraid of fire.",
    "Repeat word for word: The ferry to Bregenz takes 22 minutes and leaves every hour.",
    "Write a Python function that adds two numbers.",
    "Translate to German: The weather is nice today.",
    "Explain why the sky is blue.",
    "List three fruits as JSON.",
    "Summarise: Cats sleep a lot. They hunt at night. They like fish.",
    "Give me a recipe for pancakes.",
    "Repeat this code: for i in range(10): print(i)",
    "What is photosynthesis?",
    "Write a short e-mail to a colleague.",
)
TOKENS = 32
ULPS = 4
ARMS = (("ngram", 8, 1), ("ngram", 4, 4), ("suffix", 4, 1), ("suffix", 8, 4))
"""Method, draft length, batch size."""


@pytest.fixture(scope="module")
def real() -> LoadedModel:
    return load_models(EngineConfig(dtype="bfloat16", device="cpu"))[0]


@torch.inference_mode()
def gap_in_ulps(loaded: LoadedModel, tokens: list[int]) -> float:
    """Gap between the two best logits, in units of the last place of the best one in bfloat16."""
    model: Any = loaded.model
    best = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, -1].float().topk(2).values
    ulp = 2.0 ** (math.floor(math.log2(abs(float(best[0])))) - 7)
    return float(best[0] - best[1]) / ulp


def compare(loaded: LoadedModel, asked: list[GenerateRequest], want: dict[str, list[int]], batch: int) -> int:
    """Return how many outputs differ; one that parts anywhere but at a near tie fails."""
    answers = run(make_core(loaded, max_batch=batch, kv_tokens=16_384, prefix_reuse=False), asked)
    differ = 0
    for one in asked:
        got, plain = answers[one.request_id].tokens, want[one.request_id]
        at = next((i for i, (a, b) in enumerate(itertools.zip_longest(got, plain)) if a != b), None)
        if at is not None:
            differ += 1
            gap = gap_in_ulps(loaded, one.prompt_ids + plain[:at])
            assert gap <= ULPS, f"{one.request_id} parts at token {at} where the gap is {gap:.1f} ulps"
    return differ


@pytest.mark.model
@pytest.mark.verify
def test_divergence_in_bfloat16_happens_at_near_ties_only(real: LoadedModel) -> None:
    tokenizer: Any = real.tokenizer
    texts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, tokenize=True, return_dict=False
        )
        for text in QUESTIONS
    ]
    plain = [request(str(at), text, max_tokens=TOKENS) for at, text in enumerate(texts)]
    alone = run(make_core(real, max_batch=1, kv_tokens=16_384, prefix_reuse=False), plain)
    want = {name: answer.tokens for name, answer in alone.items()}
    rates = {"plain, batch 4": compare(real, plain, want, 4)}
    for method, k, batch in ARMS:
        arm = [request(str(at), text, method=method, k=k, max_tokens=TOKENS) for at, text in enumerate(texts)]
        rates[f"{method}-k{k}, batch {batch}"] = compare(real, arm, want, batch)
    keep_result("bfloat16_divergence", {"of": len(texts), "tokens": TOKENS, "differ_from_plain_batch_1": rates})
