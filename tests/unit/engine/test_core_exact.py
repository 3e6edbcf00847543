"""Greedy output equals transformers' own `generate`, token for token, with any method, draft length and batch."""

from __future__ import annotations

import itertools

import pytest
import torch

from engine.control import Controller
from engine.models import LoadedModel
from engine.sequence import GenerateRequest
from tests.fixtures.core import (
    SHAPES,
    Answer,
    collect,
    generate,
    make_core,
    noisy_copy,
    prompts,
    random_model,
    request,
    run,
    top_two_gap,
)
from tests.fixtures.results import keep_result

METHODS = ("ngram", "suffix", "draft_model")
TIE = 1e-4


class Scripted(Controller):
    """A controller that takes its first draft lengths from a list, then keeps to 4."""

    def __init__(self, lengths: list[int]) -> None:
        super().__init__(4, None)
        self._lengths = lengths

    def next_k(self, load: int, context: int) -> int:  # noqa: ARG002
        return self._lengths.pop(0) if self._lengths else 4


def check(loaded: LoadedModel, asked: list[GenerateRequest], answers: dict[str, Answer], want: list[list[int]]) -> int:
    """Compare with the reference; return how many differ after a tie of the reference itself."""
    ties = 0
    for one, tokens in zip(asked, want, strict=True):
        got = answers[one.request_id].tokens
        if got == tokens:
            continue
        at = next(at for at, (a, b) in enumerate(itertools.zip_longest(got, tokens)) if a != b)
        gap = top_two_gap(loaded, one.prompt_ids + tokens[:at])
        assert gap < TIE, f"{one.request_id} differs at output token {at} where the top-two gap is {gap}"
        ties += 1
    return ties


@pytest.mark.parametrize("shape", SHAPES)
def test_mixed_batch_of_every_architecture(shape: str) -> None:
    loaded = random_model(shape)
    core = make_core(loaded, noisy_copy(loaded), max_batch=5)
    texts = prompts(12)
    arms = [("plain", 0), *itertools.product(METHODS, (1, 3, 8))]
    asked = [
        request(f"{at}-{method}-k{k}", text, method=method, k=k)
        for at, (text, (method, k)) in enumerate(zip(texts, itertools.cycle(arms), strict=False))
    ]
    answers = run(core, asked)
    check(loaded, asked, answers, [generate(loaded, text, 24) for text in texts])
    drafted = [answer for answer in answers.values() if answer.metrics.speculative_decoding.num_draft_tokens]
    assert any(one.metrics.speculative_decoding.num_accepted_draft_tokens for one in drafted)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("k", [1, *(pytest.param(k, marks=pytest.mark.verify) for k in (2, 8)), 4])
def test_alone_and_in_company(method: str, k: int) -> None:
    loaded = random_model("llama", seed=5)
    draft = noisy_copy(loaded)
    texts = prompts(6, seed=k)
    want = [generate(loaded, text, 24) for text in texts]
    asked = [request(str(at), text, method=method, k=k) for at, text in enumerate(texts)]
    for batch in (1, 4):
        check(loaded, asked, run(make_core(loaded, draft, max_batch=batch), asked), want)


def test_the_target_as_its_own_draft_is_always_accepted() -> None:
    loaded = random_model("llama")
    answers = run(make_core(loaded, loaded), [request("a", range(10, 30), method="draft_model", k=4, max_tokens=21)])
    spec = answers["a"].metrics.speculative_decoding
    assert spec.num_accepted_draft_tokens == spec.num_draft_tokens
    assert spec.acceptance_histogram == [0, 0, 0, 0, 4]
    assert spec.mean_acceptance_length == 5.0


def test_draft_keeps_step_through_a_plain_phase() -> None:
    """Acceptance after k = 0 steps is as before them: the draft model catches up with what it has not seen."""
    loaded = random_model("llama")
    core = make_core(loaded, loaded)
    core.add(request("a", range(10, 30), method="draft_model", k=4, max_tokens=60, ignore_eos=True))
    answers: dict[str, Answer] = {}
    collect(answers, core.step())
    core._runs["a"].sequence.controller = Scripted([4, 4] + [0] * 7)
    while core.has_work():
        collect(answers, core.step())
    spec = answers["a"].metrics.speculative_decoding
    assert answers["a"].metrics.breakeven.undrafted == 7 + (answers["a"].metrics.breakeven.drafted[-1] == 0)
    assert spec.num_accepted_draft_tokens == spec.num_draft_tokens


def test_joins_and_leaves_disturb_nobody() -> None:
    loaded = random_model("llama", seed=9)
    core = make_core(loaded, noisy_copy(loaded), max_batch=4, prefill_chunk=8)
    texts = prompts(16, seed=4, high=60)
    arms = itertools.cycle([("plain", 0), ("draft_model", 5), ("ngram", 2), ("draft_model", 1), ("suffix", 8)])
    asked = [
        request(str(at), text, method=method, k=k, max_tokens=5 + 3 * at)
        for at, (text, (method, k)) in enumerate(zip(texts, arms, strict=False))
    ]
    answers: dict[str, Answer] = {}
    left = list(asked)
    for step in itertools.count():
        if left and step % 3 == 0:
            core.add(left.pop(0))
        if step == 20:
            core.abort("3")
        collect(answers, core.step())
        if not left and not core.has_work():
            break
    want = [generate(loaded, one.prompt_ids, one.sampling.max_tokens) for one in asked]
    check(loaded, [one for one in asked if one.request_id != "3"], answers, want[:3] + want[4:])
    assert answers["3"].tokens == want[3][: len(answers["3"].tokens)]


def test_preemption_changes_nothing() -> None:
    loaded = random_model("llama")
    core = make_core(loaded, noisy_copy(loaded), kv_tokens=512, prefix_reuse=False)
    texts = prompts(6, low=60, high=90)
    asked = [request(str(at), text, method="draft_model", k=3, max_tokens=80) for at, text in enumerate(texts)]
    answers = run(core, asked)
    assert core.stats().preemptions > 0
    check(loaded, asked, answers, [generate(loaded, text, 80) for text in texts])


def test_preemption_leaves_the_random_streams_alone() -> None:
    loaded = random_model("llama")
    asked = [
        request(str(at), text, max_tokens=80, temperature=0.8, seed=at, ignore_eos=True)
        for at, text in enumerate(prompts(6, low=60, high=90))
    ]
    crowded = make_core(loaded, kv_tokens=512, prefix_reuse=False)
    answers = run(crowded, asked)
    assert crowded.stats().preemptions > 0
    roomy = run(make_core(loaded), asked)
    assert {name: one.tokens for name, one in answers.items()} == {name: one.tokens for name, one in roomy.items()}


@pytest.mark.parametrize("reuse", [True, False])
def test_a_conversations_next_turn(reuse: bool) -> None:
    loaded = random_model("qwen3")
    core = make_core(loaded, noisy_copy(loaded), prefix_reuse=reuse)
    first = request("1", range(10, 60), method="draft_model", k=4, key="tenant")
    got = run(core, [first])["1"].tokens
    text = first.prompt_ids + got + [70, 71, 72]
    turns = [request("2", text, key="tenant", k=3, method="ngram"), request("3", text, key="other tenant")]
    answers = run(core, turns)
    check(loaded, turns, answers, [generate(loaded, text, 24)] * 2)
    last = answers["2"].last
    other = answers["3"].last
    assert last is not None
    assert other is not None
    assert (last.cached_prompt_tokens >= len(text) - 5) is reuse
    assert other.cached_prompt_tokens == 0


def ties_of(loaded: LoadedModel, batch: int, offsets: range, want: list[list[int]]) -> int:
    """200 prompts for each offset; at batch 16 every request has another method and draft length."""
    draft = noisy_copy(loaded)
    texts = prompts(200, seed=12)
    arms = list(itertools.product(METHODS, (1, 2, 4, 8)))
    ties = 0
    for offset in offsets:
        mixed = itertools.cycle(arms[offset:] + arms[:offset] + [("plain", 0)])
        chosen = mixed if batch == 16 else itertools.repeat(arms[offset])
        asked = [
            request(f"{at}-{method}-k{k}", text, method=method, k=k, max_tokens=16)
            for at, (text, (method, k)) in enumerate(zip(texts, chosen, strict=False))
        ]
        with torch.inference_mode():
            ties += check(loaded, asked, run(make_core(loaded, draft, max_batch=batch), asked), want)
    return ties


@pytest.mark.verify
@pytest.mark.parametrize("shape", SHAPES)
def test_the_whole_matrix(shape: str) -> None:
    """Methods × k: each alone at batch 1 and 4 on one shape, mixed with joins and leaves on every shape.

    What the shapes differ in, their forward pass, sees every draft length in the mixed batch.
    """
    loaded = random_model(shape, seed=11)
    want = [generate(loaded, text, 16) for text in prompts(200, seed=12)]
    ties = {16: ties_of(loaded, 16, range(3), want)}
    if shape == "llama":
        ties |= {batch: ties_of(loaded, batch, range(12), want) for batch in (1, 4)}
    found = {f"batch {batch}": count for batch, count in ties.items()}
    keep_result("greedy_exactness", {shape: {"prompts": 200, "differ_after_a_tie_below": TIE, **found}})
