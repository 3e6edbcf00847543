"""The target answers prompts in full batches, and its hidden states are kept. Called by `cli.distill.generate`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.distill.corpus import Corpus, Entry, Recipe, Split, Text
from engine.messages import Speculation
from engine.models import LoadedModel
from engine.sequence import GenerateRequest, SamplingParams
from engine.sequence import Sequence as Seq

PLAIN = Speculation("plain", 0)
SHARD = 48
"""Answers in one shard: an interruption loses no more than these."""


@dataclass(frozen=True, slots=True)
class Wish:
    """One answer to generate."""

    id: str
    sample: int
    """Which of several answers to the same prompt."""
    task: str
    split: Split
    temperature: float
    prompt_ids: list[int]

    @property
    def key(self) -> str:
        """Its name among all answers of a corpus."""
        return f"{self.id}#{self.sample}"


@dataclass(slots=True)
class _Open:
    wish: Wish
    tokens: list[int]
    features: list[torch.Tensor] = field(default_factory=list)


def taps_of(layers: int) -> tuple[int, ...]:
    """Layers whose outputs a feature-fed draft reads: a low, a high and the last one (as EAGLE-3, arXiv 2503.01840)."""
    return tuple(sorted({max(1, layers // 3), max(1, 2 * layers // 3), layers}))


def recipe_of(target: LoadedModel, *, max_tokens: int, seed: int) -> Recipe:
    """Return how a corpus of this target is made."""
    config = target.model.config.get_text_config()
    taps = taps_of(int(config.num_hidden_layers))
    return Recipe(target.name, str(target.dtype), taps, int(config.hidden_size), max_tokens, seed)


class Generator:
    """Decodes plainly with the engine's own core. One process per corpus."""

    def __init__(self, target: LoadedModel, corpus: Corpus, *, batch: int) -> None:
        recipe = corpus.recipe
        self._config = EngineConfig(
            max_batch=batch,
            kv_tokens=batch * 1024,
            max_waiting=4 * batch,
            seed=recipe.seed,
            profile=False,
            prefix_reuse=False,  # hidden states of a reused prefix would be missing
        )
        self._core = EngineCore(target, self._config)
        self._core.watch(recipe.taps, self._observe)
        self._corpus = corpus
        self._max_tokens = recipe.max_tokens
        self._eos = int(target.tokenizer.eos_token_id or min(target.eos_ids))
        self._open: dict[str, _Open] = {}

    def run(self, wishes: Sequence[Wish], advance: Callable[[int, int], None]) -> None:
        """Generate what the corpus lacks; `advance` is told of answers and output tokens, shard by shard."""
        done = {f"{entry.id}#{entry.sample}" for entry in self._corpus.entries()}
        waiting = [wish for wish in reversed(wishes) if wish.key not in done]
        shard: list[Text] = []
        try:
            while waiting or self._open:
                while waiting and len(self._open) < 2 * self._config.max_batch:
                    self._add(waiting.pop())
                for output in self._core.step():
                    one = self._open[output.request_id]
                    one.tokens.extend(output.token_ids)
                    if output.finish_reason is not None:
                        text = self._close(self._open.pop(output.request_id), ended=output.finish_reason == "stop")
                        shard.extend([text] if text is not None else [])
                if len(shard) >= SHARD:
                    self._keep(shard, advance)
        finally:  # also where the user stops: what is finished is kept
            self._keep(shard, advance)

    def _keep(self, shard: list[Text], advance: Callable[[int, int], None]) -> None:
        """Write the shard and empty it."""
        if shard:
            self._corpus.add(shard)
            advance(len(shard), sum(text.entry.total - text.entry.prompt for text in shard))
            shard.clear()

    def _add(self, wish: Wish) -> None:
        self._open[wish.key] = _Open(wish, list(wish.prompt_ids))
        seed = hash_of(f"{self._config.seed}/{wish.key}")
        params = SamplingParams(temperature=wish.temperature, max_tokens=self._max_tokens, seed=seed)
        self._core.add(GenerateRequest(wish.key, wish.prompt_ids, params, PLAIN))

    def _observe(self, parts: Sequence[tuple[Seq, torch.Tensor]]) -> None:
        for sequence, features in parts:
            one = self._open[sequence.request_id]
            if sequence.row.length == len(features):
                one.features.clear()  # a request that had to step back begins again
            one.features.append(features.to("cpu", torch.bfloat16))

    def _close(self, one: _Open, *, ended: bool) -> Text | None:
        """Return the finished answer; None where the target said nothing at all."""
        tokens = [*one.tokens, self._eos] if ended else one.tokens
        wish = one.wish
        features = torch.cat(one.features)[: len(tokens) - 1]
        if len(tokens) == len(wish.prompt_ids) or len(features) != len(tokens) - 1:
            return None
        entry = Entry(wish.id, wish.sample, wish.task, wish.split, wish.temperature, len(wish.prompt_ids), len(tokens))
        return Text(entry, torch.tensor(tokens), features)


def hash_of(text: str) -> int:
    """A number below 2³¹ that depends on the text alone."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1
