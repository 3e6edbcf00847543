"""Traces agree with real speculation: replayed drafts are those that the core's own rounds would make."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from cli.recording.generate import Answer, Generator
from cli.recording.prompts import Prompt
from cli.recording.replay import Acceptance, Replayer
from engine.messages import Speculation
from engine.models import LoadedModel
from tests.fixtures.core import generate, make_core, noisy_copy, random_model, run

TEXTS = ["aXbYcZ aXbYcZ aXbYcZ", "the cat and the cat and the", "q", "no repetition here, 1 2 3"]


def prompt(at: int, text: str, **body: Any) -> Prompt:
    return Prompt(
        f"p.jsonl:{at + 1}", f"p{at}", "chat", "chat", {"messages": [{"role": "user", "content": text}]} | body
    )


def answered(target: LoadedModel, *, max_tokens: int = 40, **options: Any) -> list[Answer]:
    generator = Generator(target, **({"batch": 2, "max_tokens": max_tokens, "temperature": 0.0, "seed": 0} | options))
    work = [(one, generator.request(one)) for one in (prompt(at, text) for at, text in enumerate(TEXTS))]
    return sorted(generator.answers(work), key=lambda answer: answer.prompt.id)


@pytest.fixture(scope="module")
def target() -> LoadedModel:
    return random_model("llama")


@pytest.fixture(scope="module")
def draft(target: LoadedModel) -> LoadedModel:
    return noisy_copy(target)


@pytest.fixture(scope="module")
def answers(target: LoadedModel) -> list[Answer]:
    return answered(target)


def steps(found: Acceptance, k: int, start: int) -> Iterator[tuple[int, int]]:
    """(drafted, emitted) of rounds at k, as the simulator walks over a trace."""
    at = start
    while at < len(found.emitted):
        drafted = min(k, found.drafted[at])
        emitted = min(found.emitted[at], drafted + 1, len(found.emitted) - at)
        yield drafted, emitted
        at += emitted


def test_answers_are_the_models_own(target: LoadedModel, answers: list[Answer]) -> None:
    for answer in answers:
        assert answer.tokens == generate(target, answer.request.prompt_ids, 40)


@pytest.mark.parametrize("k", [1, 3, 8])
@pytest.mark.parametrize("method", ["ngram", "suffix", "draft_model"])
def test_walking_a_trace_gives_the_rounds_of_the_engine(
    method: str, k: int, target: LoadedModel, draft: LoadedModel, answers: list[Answer]
) -> None:
    replayed = Replayer(target, draft, max_draft=8, batch=4).replay(method, answers)
    core = make_core(target, draft, profile=False, prefill_chunk=512)
    asked = [replace(answer.request, speculation=Speculation(method, k)) for answer in answers]
    real = run(core, asked)
    for answer, found in zip(answers, replayed, strict=True):
        assert len(found.emitted) == len(found.drafted) == len(answer.tokens)
        metrics = real[answer.request.request_id].metrics.breakeven
        assert metrics is not None
        # The first token is the prefill's, not a decode step's.
        expected = list(zip(metrics.drafted, metrics.emitted, strict=True))
        ended_at_eos = len(answer.tokens) < answer.request.sampling.max_tokens
        walked = list(steps(found, k, 1))
        if ended_at_eos:  # the engine's last steps also emit the end-of-sequence token
            count = min(len(walked), len(expected)) - 1
            assert walked[:count] == expected[:count]
        else:
            assert walked == expected


def test_drafts_hold_often_enough_to_mean_something(
    target: LoadedModel, draft: LoadedModel, answers: list[Answer]
) -> None:
    replayer = Replayer(target, draft, max_draft=8, batch=4)
    assert replayer.methods == ["ngram", "suffix", "draft_model", "hybrid"]
    emitted = {
        method: [e for one in replayer.replay(method, answers) for e in one.emitted] for method in replayer.methods
    }
    assert max(emitted["draft_model"]) > 2
    assert max(emitted["ngram"]) > 1
    assert max(map(max, emitted.values())) <= 9


def test_every_position_is_asked_afresh(target: LoadedModel, answers: list[Answer]) -> None:
    """At each position the lists equal those of a replay that begins there."""
    replayer = Replayer(target, None, max_draft=4, batch=1)
    answer = max(answers, key=lambda one: len(one.tokens))
    (whole,) = replayer.replay("suffix", [answer])
    for at in (1, len(answer.tokens) // 2, len(answer.tokens) - 1):
        request = answer.request
        later = replace(
            request,
            prompt_ids=request.prompt_ids + answer.tokens[:at],
            sampling=replace(request.sampling, max_tokens=request.sampling.max_tokens - at),
        )
        (rest,) = replayer.replay("suffix", [Answer(answer.prompt, later, answer.tokens[at:])])
        assert (rest.emitted, rest.drafted) == (whole.emitted[at:], whole.drafted[at:])


def test_a_batch_of_drafts_equals_single_ones(target: LoadedModel, draft: LoadedModel, answers: list[Answer]) -> None:
    together = Replayer(target, draft, max_draft=4, batch=4).replay("draft_model", answers)
    alone = [Replayer(target, draft, max_draft=4, batch=1).replay("draft_model", [one])[0] for one in answers]
    assert together == alone


def test_a_sampled_answer_depends_on_the_seed_alone(target: LoadedModel) -> None:
    first, again, other = (
        [one.tokens for one in answered(target, temperature=1.0, seed=seed, max_tokens=12)] for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


def test_a_schema_holds_in_the_answer_and_in_the_drafts(target: LoadedModel) -> None:
    generator = Generator(target, batch=1, max_tokens=30, temperature=0.0, seed=0)
    schema = {"type": "object", "properties": {"answer": {"enum": ["yes"]}}, "required": ["answer"]}
    wanted = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    one = prompt(0, "say yes", response_format=wanted)
    (answer,) = generator.answers([(one, generator.request(one))])
    (found,) = Replayer(target, None, max_draft=8, batch=1).replay("ngram", [answer])
    size = len(answer.tokens)
    assert found.emitted == [min(9, size - at) for at in range(size)]  # what the schema forces is drafted and holds
