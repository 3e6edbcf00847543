"""What one request or one drafter does wrong never reaches the others; extreme settings stay defined."""

from __future__ import annotations

import json
from collections.abc import Sequence as Tokens
from typing import Any

import pytest
import torch

from engine.config import EngineConfig
from engine.control import Controller
from engine.core import EngineCore
from engine.kv_cache import KVPool
from engine.messages import Speculation
from engine.model_runner import make_runner
from engine.models import LoadedModel
from engine.sampler import SamplerState
from engine.sequence import GenerateRequest, SamplingParams, Sequence
from engine.server.run import make_context
from engine.spec_decode.draft_model import DraftModelProposer
from tests.fixtures.core import EOS, Answer, collect, generate, make_core, noisy_copy, random_model, request, run

PROMPT = [30, 40, 50, 30, 40, 50, 30, 40]
ARMS = [("plain", 0), ("ngram", 4), ("suffix", 4), ("draft_model", 4)]


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return random_model("llama", seed=2)


class Blocked:
    """A grammar in which nothing may follow."""

    def mask(self, logits: torch.Tensor, before: Tokens[int]) -> None:  # noqa: ARG002 - the protocol's arguments
        logits.fill_(float("-inf"))

    def allowed(self, draft: Tokens[int]) -> int:  # noqa: ARG002
        return 0

    def forced(self, limit: int) -> list[int]:  # noqa: ARG002
        return []

    def accept(self, tokens: Tokens[int]) -> None:
        """Nothing to take in."""


def finish(core: EngineCore) -> dict[str, Answer]:
    answers: dict[str, Answer] = {}
    while core.has_work():
        collect(answers, core.step())
    return answers


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(("method", "k"), ARMS)
def test_a_request_that_cannot_go_on_ends_alone(
    loaded: LoadedModel, method: str, k: int, temperature: float, caplog: pytest.LogCaptureFixture
) -> None:
    core = make_core(loaded, noisy_copy(loaded))
    core.add(request("good", PROMPT, method=method, k=k))
    core.add(request("bad", PROMPT, method=method, k=k, temperature=temperature, logit_bias={3: 1.0}))
    core._arriving[1].sampler.grammar = Blocked()
    answers = finish(core)
    assert answers["good"].tokens == generate(loaded, PROMPT, 24)
    assert answers["bad"].finish_reason == "error"
    assert answers["bad"].last is not None
    assert "could not be chosen" in str(answers["bad"].last.error)
    assert core.stats().kv_tokens_used == 0


def test_a_decoder_that_fails_ends_its_request_only(loaded: LoadedModel, caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def decode(self, *_: object, **__: object) -> str:
            raise ValueError("no such piece")

    core = make_core(loaded)
    core.add(request("good", PROMPT))
    core.add(request("bad", PROMPT))
    core._arriving[1].stream._detokenizer._decoder = Broken()
    answers = finish(core)
    assert answers["good"].tokens == generate(loaded, PROMPT, 24)
    assert answers["bad"].last is not None
    assert answers["bad"].last.error == "the request failed: no such piece"


def test_a_drafter_that_fails_costs_speed_only(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    core = make_core(loaded)

    def fail(wants: object) -> list[object]:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(core._proposals._proposers["ngram"], "propose", fail)
    answers = run(core, [request("a", PROMPT, method="ngram", k=4)])
    assert answers["a"].tokens == generate(loaded, PROMPT, 24)
    assert answers["a"].metrics.speculative_decoding.num_draft_tokens == 0
    assert "drafting failed" in caplog.text


def proposer(loaded: LoadedModel, chunk: int = 64) -> DraftModelProposer:
    runner = make_runner(loaded)
    return DraftModelProposer(runner, KVPool(runner.kv_shape, 1024), vocab_size=259, max_len=512, chunk=chunk)


@pytest.mark.parametrize("plain_steps", [1, 3, 7, 20])
def test_rejected_drafts_are_forgotten_through_a_plain_phase(loaded: LoadedModel, plain_steps: int) -> None:
    """What was drafted and rejected before k = 0 must not be taken for text when drafting comes back."""
    greedy = SamplerState(SamplingParams(temperature=0.0), (), 0)
    asked = GenerateRequest("a", PROMPT, SamplingParams(), Speculation("draft_model", 8))
    sequence = Sequence(asked, Controller(8, None), 0.0, list(PROMPT), len(PROMPT))
    drafting = proposer(loaded)
    first = drafting.propose([(sequence, greedy, 8)])[0].tokens
    sequence.tokens += [first[0], *((token + 1) % 259 for token in first[1:2])]
    sequence.tokens += [60 + at for at in range(plain_steps)]
    again = drafting.propose([(sequence, greedy, 8)])[0].tokens
    assert again == proposer(loaded).propose([(sequence, greedy, 8)])[0].tokens


SETTINGS: list[dict[str, Any]] = [
    {"logit_bias": {250: 2.0, 5: 1.0}},
    {"frequency_penalty": 0.7, "presence_penalty": 0.2},
    {"repetition_penalty": 1.4},
    {"grammar": {"type": "object", "properties": {"a": {"enum": ["yes", "no"]}}, "required": ["a"]}},
]


@pytest.mark.parametrize("width", [200, 258, 300])
@pytest.mark.parametrize("settings", SETTINGS, ids="-".join)
def test_a_draft_of_another_width(loaded: LoadedModel, width: int, settings: dict[str, Any]) -> None:
    """Vocabularies padded differently: rows that the draft lacks are never proposed, nor is it asked to read them."""
    draft = random_model("llama", seed=2, vocab=width)
    with torch.no_grad():
        for mine, theirs in zip(draft.model.parameters(), loaded.model.parameters(), strict=True):
            rows = min(mine.shape[0], theirs.shape[0])
            mine[:rows] = theirs[:rows]
    core = make_core(loaded, draft)
    texts = [PROMPT, [*PROMPT, 258, 30, 40], [220] * 9]
    for temperature in (0.0, 1.0):

        def asked(method: str, k: int) -> list[GenerateRequest]:
            return [
                request(f"{method}{at}", text, method=method, k=k, seed=at, temperature=temperature, **settings)  # noqa: B023
                for at, text in enumerate(texts)
            ]

        plain, spec = run(core, asked("plain", 0)), run(core, asked("draft_model", 4))
        for at in range(len(texts)):
            assert spec[f"draft_model{at}"].finish_reason == plain[f"plain{at}"].finish_reason or temperature
            if temperature == 0.0:
                assert spec[f"draft_model{at}"].tokens == plain[f"plain{at}"].tokens
        assert spec["draft_model0"].metrics.speculative_decoding.num_draft_tokens > 0 or width == 200


@pytest.mark.parametrize(("method", "k"), ARMS)
@pytest.mark.parametrize("temperature", [1e-4, 1e-40, 5e-324])
def test_the_coldest_temperatures_are_greedy(loaded: LoadedModel, method: str, k: int, temperature: float) -> None:
    core = make_core(loaded, noisy_copy(loaded))
    answers = run(core, [request("a", PROMPT, method=method, k=k, temperature=temperature, top_p=0.9, min_p=0.01)])
    assert answers["a"].tokens == generate(loaded, PROMPT, 24)


@pytest.mark.parametrize("penalty", [1e-3, 1e-40, 5e-324])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_smallest_repetition_penalties_are_defined(loaded: LoadedModel, penalty: float, temperature: float) -> None:
    answers = run(
        make_core(loaded),
        [request("a", PROMPT, method="ngram", k=4, temperature=temperature, repetition_penalty=penalty, seed=1)],
    )
    assert answers["a"].finish_reason in {"length", "stop"}


@pytest.mark.parametrize(("method", "k"), ARMS)
def test_json_ends_where_it_is_complete_even_without_eos(loaded: LoadedModel, method: str, k: int) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": ["yes", "no"]}}, "required": ["a"]}
    asked = request("a", PROMPT, method=method, k=k, ignore_eos=True, grammar=schema, max_tokens=60)
    answer = run(make_core(loaded, noisy_copy(loaded)), [asked])["a"]
    assert json.loads(answer.text)["a"] in {"yes", "no"}
    assert answer.finish_reason == "stop"
    assert EOS not in answer.tokens


@pytest.mark.parametrize("kv_tokens", [64, 255, 300, 8192])
def test_every_prompt_within_the_window_that_is_told_can_be_served(loaded: LoadedModel, kv_tokens: int) -> None:
    config = EngineConfig(kv_tokens=kv_tokens, max_k=8, profile=False)
    core = EngineCore(loaded, config)
    window = make_context(core, config, loaded, None).limits.max_model_len
    tokens = [30 + at % 90 for at in range(window - 1)]
    answers = run(
        core, [request("a", tokens, max_tokens=1, ignore_eos=True), request("b", tokens[:1], max_tokens=window - 1)]
    )
    assert answers["a"].finish_reason == "length"
    assert len(answers["a"].tokens) == 1
    assert answers["b"].finish_reason in {"length", "stop"}
