"""The engine against transformers and against itself, on SmolLM2-135M: ratios from alternating pairs.

`python -m benchmarks engine_speed --only plain,mixed` measures some cases and leaves the others' figures as they are.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks._engine_bench import (
    ARTICLE,
    CLOCKS,
    COPYING,
    COPYING_EIGHT,
    CREATIVE,
    EIGHT,
    LONG,
    PLAIN,
    SHORT,
    TOKENS,
    Bench,
    adaptive,
    floor_seconds,
    make_bench,
    measure_costs,
)
from benchmarks._pairs import PAIRS, compare
from engine.attention import RowInput
from engine.core import EngineCore
from engine.memory import set_memory_up
from engine.messages import Speculation
from engine.sequence import GenerateRequest, SamplingParams

NGRAM = Speculation("ngram", 5)
SUFFIX = Speculation("suffix", 8)
Figures = dict[str, Any]


class Pairs:
    """Measures a bench by alternating pairs."""

    def __init__(self, bench: Bench, count: int) -> None:
        self.bench = bench
        self.count = count

    def ratio(self, own: Callable[[], float], base: Callable[[], float]) -> Figures:
        """How many times as fast as `base` something is."""
        return compare(own, base, pairs=self.count).figures()


def plain(pairs: Pairs) -> Figures:
    """Plain decoding alone, against transformers and against reading the weights once."""
    bench, story = pairs.bench, CREATIVE[0]
    against = pairs.ratio(lambda: bench.seconds([story], PLAIN), lambda: bench.generate(story))
    floor = floor_seconds(bench.model, bench.clock)
    step = against["seconds"] / (TOKENS - 1)
    return {
        "vs_generate": against,
        "step_ms": round(step * 1e3, 2),
        "weight_reading_floor_ms": round(floor * 1e3, 2),
        "step_over_floor": round(step / floor, 3),
    }


def batch(pairs: Pairs) -> Figures:
    """Tokens per second of eight requests together over those of one."""
    bench = pairs.bench
    return pairs.ratio(
        lambda: bench.seconds(EIGHT, PLAIN, count=SHORT) / 8,
        lambda: bench.seconds([CREATIVE[0]], PLAIN, count=SHORT),
    )


def copying(pairs: Pairs, arm: Speculation) -> Figures:
    """Texts that copy from their prompt, each alone, against plain: the time of all of them, as they differ much."""
    bench = pairs.bench
    return pairs.ratio(
        lambda: sum(bench.seconds([text], arm) for text in COPYING),
        lambda: sum(bench.seconds([text], PLAIN) for text in COPYING),
    )


def lookup(pairs: Pairs) -> Figures:
    """N-gram drafts on texts that copy, against transformers' prompt lookup at the same length."""
    bench = pairs.bench
    return pairs.ratio(
        lambda: sum(bench.seconds([text], NGRAM) for text in COPYING),
        lambda: sum(bench.generate(text, prompt_lookup_num_tokens=NGRAM.k) for text in COPYING),
    )


def copying_eight(pairs: Pairs) -> Figures:
    """The same, eight together, against plain."""
    bench = pairs.bench
    return pairs.ratio(
        lambda: bench.seconds(COPYING_EIGHT, NGRAM, count=SHORT),
        lambda: bench.seconds(COPYING_EIGHT, PLAIN, count=SHORT),
    )


def creative(pairs: Pairs, arm: Speculation, together: int) -> Figures:
    """Texts that do not copy, with in-flight control, against plain."""
    bench = pairs.bench
    steered = adaptive(bench, arm.method, arm.k)
    texts = EIGHT if together == 8 else CREATIVE[:1]
    return pairs.ratio(
        lambda: bench.seconds(texts, steered, count=LONG), lambda: bench.seconds(texts, PLAIN, count=LONG)
    )


def draft_loaded(pairs: Pairs) -> Figures:
    """Plain requests to an engine that has a draft model loaded, against one that has none."""
    bench = pairs.bench
    with_draft = EngineCore(bench.model, bench.config, bench.model)
    texts = [CREATIVE[0]]
    return pairs.ratio(lambda: bench.seconds(texts, PLAIN, core=with_draft), lambda: bench.seconds(texts, PLAIN))


def mixed(pairs: Pairs) -> Figures:
    """Each half of a mixed batch of 8 against a batch of 8 of its own kind, while the other half keeps running.

    The last figure sets the speculative half against one beside the same creative texts as in the mixed batch, which
    then speculate as well and find little to draft: a harder comparison, since that company hardly slows it down.
    """
    bench = pairs.bench
    first, second = list(CREATIVE[:4]), COPYING_EIGHT[:4]
    measure_costs(bench)  # by which drafts beside plain requests are kept short
    return {
        "plain_half": pairs.ratio(
            lambda: bench.half(first, second, PLAIN, NGRAM), lambda: bench.half(first, second, PLAIN, PLAIN)
        ),
        "speculative_half": pairs.ratio(
            lambda: bench.half(second, first, NGRAM, PLAIN), lambda: bench.half(second, second, NGRAM, NGRAM)
        ),
        "speculative_half_by_company": pairs.ratio(
            lambda: bench.half(second, first, NGRAM, PLAIN), lambda: bench.half(second, first, NGRAM, NGRAM)
        ),
    }


def overheads(pairs: Pairs) -> Figures:
    """Share of a batch-8 step outside the model's forward pass, and the stall by a long prompt."""
    bench, clock = pairs.bench, pairs.bench.clock
    inside = [0.0]
    runner = bench.core._runner
    forward = runner.forward

    def timed(rows: Sequence[RowInput]) -> torch.Tensor:
        started = clock()
        result = forward(rows)
        inside[0] += clock() - started
        return result

    runner.forward = timed  # type: ignore[method-assign]
    try:
        shares = []
        for _ in range(5):
            inside[0] = 0.0
            started = clock()
            bench.seconds(EIGHT, PLAIN, count=SHORT)
            shares.append(1 - inside[0] / (clock() - started))
    finally:
        runner.forward = forward  # type: ignore[method-assign]
    return {"outside_model_share_batch_8": round(statistics.median(shares), 4), **stall(bench)}


def stall(bench: Bench) -> dict[str, float]:
    """Longest and median gap of four running requests, alone and while a prompt of 2,000 tokens is taken in."""
    core, clock = bench.core, bench.clock
    names = []
    for at in range(4):
        names.append(f"running {at}")
        params = SamplingParams(temperature=0.0, max_tokens=400, ignore_eos=True)
        core.add(GenerateRequest(names[-1], bench.ids(CREATIVE[at]), params, PLAIN, cache_key=names[-1]))
    gaps: dict[bool, list[float]] = {False: [], True: []}
    for step in range(60):
        if step == 30:
            params = SamplingParams(temperature=0.0, max_tokens=1)
            core.add(GenerateRequest("long", (bench.ids(ARTICLE) * 30)[:2000], params, PLAIN, cache_key="long"))
        started = clock()
        core.step()
        if step >= 10:
            gaps[30 <= step < 38].append(clock() - started)
    for name in names:
        core.abort(name)
    while core.has_work():
        core.step()
    return {
        "step_ms_batch_4": round(statistics.median(gaps[False]) * 1e3, 2),
        "longest_step_ms_during_2000_token_prompt": round(max(gaps[True]) * 1e3, 2),
    }


CASES: dict[str, Callable[[Pairs], Figures]] = {
    "plain": plain,
    "batch_8_over_1": batch,
    "copying_ngram": lambda pairs: copying(pairs, NGRAM),
    "copying_suffix": lambda pairs: copying(pairs, SUFFIX),
    "copying_ngram_vs_prompt_lookup": lookup,
    "copying_ngram_batch_8": copying_eight,
    "creative_ngram": lambda pairs: creative(pairs, NGRAM, 1),
    "creative_suffix": lambda pairs: creative(pairs, SUFFIX, 1),
    "creative_ngram_batch_8": lambda pairs: creative(pairs, NGRAM, 8),
    "draft_loaded": draft_loaded,
    "mixed": mixed,
    "overheads": overheads,
}


def main() -> None:
    """Print the figures as one JSON object on the last line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="kept for the runner: JSON is always printed")
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--dtype", default="auto", help="auto: the one that the engine takes on this machine")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: seconds on the CPU, for a busy machine")
    parser.add_argument("--only", default=",".join(CASES), help=f"cases, by commas (default: {','.join(CASES)})")
    args = parser.parse_args()
    names = args.only.split(",")
    if unknown := [name for name in names if name not in CASES]:
        parser.error(f"--only: no case {', '.join(unknown)}; expected some of {', '.join(CASES)}")
    pairs = Pairs(make_bench(args.dtype, args.clock), args.pairs)
    conditions = {"dtype": str(pairs.bench.model.dtype).removeprefix("torch."), "threads": torch.get_num_threads()}
    conditions["clock"] = args.clock
    figures = {}
    for name in names:
        figures[name] = CASES[name](pairs) | conditions
        print(f"{name}: {figures[name]}", file=sys.stderr, flush=True)
    print(json.dumps(figures))


if __name__ == "__main__":
    set_memory_up()  # as every engine process does
    main()
