"""Random joins, leaves, aborts, draft lengths, stops and caps against the one-at-a-time reference."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from engine.core import EngineCore
from engine.models import LoadedModel
from engine.sequence import GenerateRequest
from tests.fixtures.core import SHAPES, Answer, collect, make_core, noisy_copy, random_model, request, run, top_two_gap
from tests.fixtures.results import keep_result

ARMS = [("plain", 0), *((method, k) for method in ("ngram", "suffix", "draft_model") for k in (1, 2, 5, 8))]


@dataclass
class Case:
    """One request of a fuzz run."""

    asked: GenerateRequest
    aborted: bool


def cases(rng: random.Random, count: int) -> list[Case]:
    made = []
    for at in range(count):
        method, k = rng.choice(ARMS)
        length = rng.choice((1, 2, 5, 20, 70))
        pattern = [rng.randrange(3, 259) for _ in range(rng.choice((3, 8, 70)))]
        prompt = [pattern[i % len(pattern)] for i in range(length)]
        stop = tuple(rng.choice("abcdefghij{}é ") for _ in range(rng.choice((0, 0, 2))))
        made.append(
            Case(
                request(
                    str(at), prompt, method=method, k=k, key=rng.choice("ab"), stop=stop,
                    max_tokens=rng.choice((1, 2, 9, 40)), ignore_eos=rng.random() < 0.3,
                    presence_penalty=rng.choice((0.0, 0.0, 0.4)), prediction=rng.choice(((), prompt[:30])),
                ),
                aborted=rng.random() < 0.15,
            )
        )  # fmt: skip
    return made


def reference(loaded: LoadedModel, asked: GenerateRequest) -> Answer:
    """The same request alone, decoded plainly."""
    params = {name: getattr(asked.sampling, name) for name in ("stop", "max_tokens", "ignore_eos", "presence_penalty")}
    core = make_core(loaded, prefix_reuse=False, max_batch=1)
    return run(core, [request(asked.request_id, asked.prompt_ids, **params)])[asked.request_id]


def drive(core: EngineCore, todo: list[Case], rng: random.Random) -> dict[str, Answer]:
    answers: dict[str, Answer] = {}
    left = list(todo)
    doomed: list[str] = []
    while left or core.has_work():
        while left and rng.random() < 0.4:
            case = left.pop(0)
            core.add(case.asked)
            if case.aborted:
                doomed.append(case.asked.request_id)
        if doomed and rng.random() < 0.2:
            core.abort(doomed.pop())
        collect(answers, core.step())
    return answers


def fuzz(shape: str, seed: int, count: int) -> None:
    rng = random.Random(seed)
    loaded = random_model(shape, seed=seed)
    core = make_core(
        loaded,
        noisy_copy(loaded),
        max_batch=rng.choice((2, 5)),
        prefill_chunk=rng.choice((4, 32)),
        kv_tokens=rng.choice((640, 8192)),
        suffix_store_tokens=rng.choice((0, 500)),
    )
    todo = cases(rng, count)
    answers = drive(core, todo, rng)
    for case in todo:
        got, want = answers[case.asked.request_id], reference(loaded, case.asked)
        where = f"seed {seed}, request {case.asked}"
        if got.finish_reason == "abort":
            assert want.tokens[: len(got.tokens)] == got.tokens, where
            continue
        if got.tokens != want.tokens:
            at = next((i for i, (a, b) in enumerate(zip(got.tokens, want.tokens, strict=False)) if a != b), 0)
            assert top_two_gap(loaded, case.asked.prompt_ids + want.tokens[:at]) < 1e-4, where
            continue
        assert (got.text, got.finish_reason) == (want.text, want.finish_reason), where
    stats = core.stats()
    assert (stats.running, stats.waiting, stats.kv_tokens_used) == (0, 0, 0)


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.verify) for seed in (2, 3))])
def test_fuzz(seed: int) -> None:
    fuzz("llama", seed, 30)


@pytest.mark.verify
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", range(100, 104))
def test_long_fuzz(shape: str, seed: int) -> None:
    fuzz(shape, seed, 80)
    keep_result("fuzz", {f"{shape}, seed {seed}": "80 requests as alone"})
