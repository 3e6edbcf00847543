"""The engine against transformers and against itself, on SmolLM2-135M in bfloat16: ratios from alternating pairs."""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks._pairs import PAIRS, OtherLoad, compare
from engine.attention import RowInput
from engine.config import EngineConfig, default_threads
from engine.core import EngineCore
from engine.messages import Adaptive, Speculation
from engine.models import LoadedModel
from engine.models.load import load_models
from engine.sequence import GenerateRequest, SamplingParams

CODE = """class Account:
    def __init__(self, owner, balance):
        self.owner = owner
        self.balance = balance

    def deposit(self, amount):
        self.balance = self.balance + amount
        return self.balance

    def withdraw(self, amount):
        if amount > self.balance:
            raise ValueError("not enough money")
        self.balance = self.balance - amount
        return self.balance
"""
ARTICLE = (
    "The harbour of Lindau was rebuilt in 1856 after the great flood. The lighthouse is 33 metres tall and the lion is "
    "six metres high. Both were designed by Johann von Halbig. Today 250,000 visitors come each year, most of them in "
    "July and August. The ferry to Bregenz takes 22 minutes and leaves every hour between nine and eighteen o'clock."
)
COPYING = (
    f"Rename `amount` to `value` in this code and print the whole code again:\n{CODE}",
    f"Repeat this code, adding a docstring to the class:\n{CODE}",
    f"Repeat this article word for word:\n{ARTICLE}",
    f'Turn this text into JSON with the keys "lighthouse", "ferry" and "visitors", quoting the sentences:\n{ARTICLE}',
)
CREATIVE = (
    "Write a story about a dragon who is afraid of fire.",
    "Write a poem about the sea at night.",
    "Invent a new festival and describe how people celebrate it.",
    "Describe a city on the moon in the year 2300.",
)
EIGHT = [CREATIVE[at % 4] for at in range(8)]
COPYING_EIGHT = [COPYING[at % 4] for at in range(8)]
TOKENS = 40
SHORT = 20
"""Tokens of each answer, alone and in batches of 8: with 15 pairs the whole run takes some 8 minutes on 2 cores."""
_names = iter(range(10**9))


class Bench:
    """A model, an engine over it, and requests to it."""

    def __init__(self, model: LoadedModel, core: EngineCore) -> None:
        self.model = model
        self.core = core

    def ids(self, text: str) -> list[int]:
        """Return the prompt of one user message."""
        tokenizer: Any = self.model.tokenizer
        ids: list[int] = tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, tokenize=True, return_dict=False
        )
        return ids

    def add(self, text: str, arm: Speculation, count: int, *, place: int = 0, core: EngineCore | None = None) -> str:
        """Queue one greedy request and return its id. Only its prompt's KV is remembered, by text and place."""
        name = f"{next(_names)}"
        params = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)
        (core or self.core).add(GenerateRequest(name, self.ids(text), params, arm, cache_key=f"{place} {text}"))
        return name

    def seconds(
        self, texts: Sequence[str], arm: Speculation, *, count: int = TOKENS, core: EngineCore | None = None
    ) -> float:
        """Decode all texts together and return the seconds after the last prompt was taken in."""
        core = core or self.core
        for place, text in enumerate(texts):
            self.add(text, arm, count, place=place, core=core)
        begun: set[str] = set()
        while len(begun) < len(texts):
            begun |= {output.request_id for output in core.step()}
        started = time.perf_counter()
        while core.has_work():
            core.step()
        return time.perf_counter() - started

    def half(self, ours: Sequence[str], others: Sequence[str], arm: Speculation, other_arm: Speculation) -> float:
        """Seconds until `ours` are decoded while `others`, which are longer, run beside them all the time."""
        core = self.core
        waiting = {self.add(text, other_arm, 16 * SHORT, place=place) for place, text in enumerate(others)}
        rest = set(waiting)
        while rest:
            rest -= {output.request_id for output in core.step()}
        left = {self.add(text, arm, SHORT, place=8 + place) for place, text in enumerate(ours)}
        begun: set[str] = set()
        while not left <= begun:
            begun |= {output.request_id for output in core.step()}
        started = time.perf_counter()
        while left:
            left -= {output.request_id for output in core.step() if output.finish_reason}
        seconds = time.perf_counter() - started
        for name in waiting:
            core.abort(name)
        while core.has_work():
            core.step()
        return seconds

    @torch.inference_mode()
    def generate(self, text: str, count: int = TOKENS, **options: int) -> float:
        """Seconds of transformers' own decoding after the prompt: `count` tokens against one."""
        model: Any = self.model.model
        ids = torch.tensor([self.ids(text)])
        settings = {"do_sample": False, "pad_token_id": 0, "eos_token_id": None, "attention_mask": torch.ones_like(ids)}
        marks = []
        for length in (1, count):
            started = time.perf_counter()
            model.generate(ids, max_new_tokens=length, **settings, **(options if length > 1 else {}))
            marks.append(time.perf_counter() - started)
        return marks[1] - marks[0]


PLAIN = Speculation("plain", 0)


def floor_seconds(model: LoadedModel, repeats: int = 9) -> float:
    """Seconds to read all weights once, by summing them."""
    weights = [weight.detach().view(torch.int16) for weight in {id(w): w for w in model.model.parameters()}.values()]
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        for weight in weights:
            weight.max()
        times.append(time.perf_counter() - started)
    return min(times)


def adaptive(bench: Bench, method: str, k: int) -> Speculation:
    """In-flight control with the break-even lengths that this engine has measured, and a prior in the middle."""
    pairs = bench.core.costs().cells
    known = [
        (cell.k, (cell.draft_s + cell.verify_s) / cell.plain_s)
        for cell in pairs
        if cell.method == method and cell.batch == 1
    ]
    return Speculation(method, k, Adaptive(break_even=known or [(k, 1.2)], prior=[0.5]))


def overheads(bench: Bench) -> dict[str, float]:
    """Share of a batch-8 step outside the model's forward pass, and the stall by a long prompt."""
    inside = [0.0]
    runner = bench.core._runner
    forward = runner.forward

    def timed(rows: Sequence[RowInput]) -> torch.Tensor:
        started = time.perf_counter()
        result = forward(rows)
        inside[0] += time.perf_counter() - started
        return result

    runner.forward = timed  # type: ignore[method-assign]
    try:
        shares = []
        for _ in range(3):
            inside[0] = 0.0
            texts = [CREATIVE[at % len(CREATIVE)] for at in range(8)]
            started = time.perf_counter()
            bench.seconds(texts, PLAIN, count=SHORT)
            shares.append(1 - inside[0] / (time.perf_counter() - started))
    finally:
        runner.forward = forward  # type: ignore[method-assign]
    return {"outside_model_share_batch_8": round(statistics.median(shares), 4), **stall(bench)}


def stall(bench: Bench) -> dict[str, float]:
    """Longest and median gap of four running requests, alone and while a prompt of 2,000 tokens is taken in."""
    core = bench.core
    names = []
    for at in range(4):
        names.append(f"running {next(_names)}")
        params = SamplingParams(temperature=0.0, max_tokens=400, ignore_eos=True)
        core.add(GenerateRequest(names[-1], bench.ids(CREATIVE[at]), params, PLAIN, cache_key=names[-1]))
    gaps: dict[bool, list[float]] = {False: [], True: []}
    for step in range(60):
        if step == 30:
            params = SamplingParams(temperature=0.0, max_tokens=1)
            core.add(GenerateRequest("long", (bench.ids(ARTICLE) * 30)[:2000], params, PLAIN, cache_key="long"))
        started = time.perf_counter()
        core.step()
        if step >= 10:
            gaps[30 <= step < 38].append(time.perf_counter() - started)
    for name in names:
        core.abort(name)
    while core.has_work():
        core.step()
    return {
        "step_ms_batch_4": round(statistics.median(gaps[False]) * 1e3, 2),
        "longest_step_ms_during_2000_token_prompt": round(max(gaps[True]) * 1e3, 2),
    }


class Figures(dict[str, Any]):
    """Named figures, printed to standard error as they come."""

    def __init__(self, pairs: int) -> None:
        super().__init__()
        self._pairs = pairs

    def ratio(self, name: str, own: Callable[[], float], base: Callable[[], float]) -> None:
        """Measure how many times as fast as `base` something is."""
        self[name] = compare(own, base, pairs=self._pairs).figures()
        print(f"{name}: {self[name]}", file=sys.stderr, flush=True)


def plain_speed(bench: Bench, figures: Figures) -> None:
    """Plain decoding against transformers, against the memory's speed, and in a batch."""
    story = CREATIVE[0]
    figures.ratio("plain_vs_generate", lambda: bench.seconds([story], PLAIN), lambda: bench.generate(story))
    floor = floor_seconds(bench.model)
    figures["weight_reading_floor_ms"] = round(floor * 1e3, 2)
    figures["plain_step_over_floor"] = round(figures["plain_vs_generate"]["seconds"] / (TOKENS - 1) / floor, 3)
    figures.ratio(
        "batch_8_throughput_over_batch_1",
        lambda: bench.seconds(EIGHT, PLAIN, count=SHORT) / 8,
        lambda: bench.seconds([story], PLAIN, count=SHORT),
    )


def taking_turns(measured: Callable[[str], float]) -> Callable[[], float]:
    """Measure two of the copying prompts a time, by turns; both sides of a pair take the same ones."""
    turns = itertools.cycle((COPYING[::2], COPYING[1::2]))
    return lambda: sum(measured(text) for text in next(turns))


def speculation(bench: Bench, figures: Figures, arm: Speculation) -> None:
    """One method on texts that copy, and under in-flight control on one that does not."""
    name = f"{arm.method}_k{arm.k}"
    figures.ratio(
        f"copying_{name}_vs_plain_batch_1",
        taking_turns(lambda text: bench.seconds([text], arm)),
        taking_turns(lambda text: bench.seconds([text], PLAIN)),
    )
    steered = adaptive(bench, arm.method, arm.k)
    figures.ratio(
        f"creative_in_flight_{name}_vs_plain_batch_1",
        lambda: bench.seconds([CREATIVE[0]], steered),
        lambda: bench.seconds([CREATIVE[0]], PLAIN),
    )


def speculation_in_a_batch(bench: Bench, figures: Figures, arm: Speculation) -> None:
    """The same at 8 requests together."""
    name = f"{arm.method}_k{arm.k}"
    steered = adaptive(bench, arm.method, arm.k)
    for what, texts, used in (("copying", COPYING_EIGHT, arm), ("creative_in_flight", EIGHT, steered)):
        figures.ratio(
            f"{what}_{name}_vs_plain_batch_8",
            functools.partial(bench.seconds, texts, used, count=SHORT),
            functools.partial(bench.seconds, texts, PLAIN, count=SHORT),
        )


def mixed(bench: Bench, figures: Figures, arm: Speculation) -> None:
    """Each half of a mixed batch of 8 against a batch of 8 of its own kind, while the other half keeps running."""
    first, second = list(CREATIVE[:4]), COPYING_EIGHT[:4]
    figures.ratio(
        "mixed_batch_plain_half_vs_all_plain",
        lambda: bench.half(first, second, PLAIN, arm),
        lambda: bench.half(first, second, PLAIN, PLAIN),
    )
    figures.ratio(
        "mixed_batch_speculative_half_vs_all_speculative",
        lambda: bench.half(second, first, arm, PLAIN),
        lambda: bench.half(second, first, arm, arm),
    )


def measure(pairs: int) -> dict[str, Any]:
    """All figures."""
    config = EngineConfig(dtype="bfloat16", kv_tokens=32_768, max_batch=8)
    torch.set_num_threads(config.num_threads)
    model, _ = load_models(config)
    bench = Bench(model, EngineCore(model, config))
    while bench.core.profile_once():
        pass
    figures = Figures(pairs)
    figures.update(threads=torch.get_num_threads(), tokens_alone=TOKENS, tokens_in_batch=SHORT)
    plain_speed(bench, figures)
    ngram = Speculation("ngram", 5)
    for arm in (ngram, Speculation("suffix", 8)):
        speculation(bench, figures, arm)
    speculation_in_a_batch(bench, figures, ngram)
    figures.ratio(
        "copying_ngram_vs_transformers_prompt_lookup",
        taking_turns(lambda text: bench.seconds([text], ngram)),
        taking_turns(lambda text: bench.generate(text, prompt_lookup_num_tokens=5)),
    )
    with_draft = EngineCore(model, config, model)
    figures.ratio(
        "plain_with_draft_loaded_vs_without",
        lambda: bench.seconds([CREATIVE[0]], PLAIN, core=with_draft),
        lambda: bench.seconds([CREATIVE[0]], PLAIN),
    )
    mixed(bench, figures, ngram)
    figures.update(overheads(bench))
    return dict(figures)


def main() -> None:
    """Print the figures as one JSON object on the last line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="kept for the runner: JSON is always printed")
    parser.add_argument("--pairs", type=int, default=PAIRS)
    args = parser.parse_args()
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    with OtherLoad() as other:
        figures = measure(args.pairs)
    figures["other_load"] = round(other.cores, 3)
    figures["default_threads"] = default_threads()
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
