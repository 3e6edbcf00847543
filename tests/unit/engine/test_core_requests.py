"""Requests from arrival to end: stops, caps, EOS, aborts, refusals, logprobs, counts, in-flight control."""

from __future__ import annotations

import math
import threading
from typing import Any

import pytest
import torch

from engine.errors import QueueFull, RequestRejected
from engine.messages import Adaptive
from engine.models import LoadedModel
from tests.fixtures.core import EOS, Answer, collect, generate, make_core, noisy_copy, random_model, request, run

ARMS = [("plain", 0), ("ngram", 4), ("suffix", 4), ("draft_model", 4)]


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return random_model("llama", seed=4)


@pytest.fixture(scope="module")
def draft(loaded: LoadedModel) -> LoadedModel:
    return noisy_copy(loaded)


PROMPT = [40, 41, 42, 43] * 4


@pytest.mark.parametrize(("method", "k"), ARMS)
def test_max_tokens_is_exact(loaded: LoadedModel, draft: LoadedModel, method: str, k: int) -> None:
    for cap in (1, 2, 3, 7):
        answer = run(
            make_core(loaded, draft), [request("a", PROMPT, method=method, k=k, max_tokens=cap, ignore_eos=True)]
        )["a"]
        assert (len(answer.tokens), answer.finish_reason) == (cap, "length")
        assert answer.last is not None
        assert answer.last.completion_tokens == cap
        steps = answer.metrics.breakeven
        assert steps is not None
        assert sum(steps.emitted) == cap - 1  # the first token comes from the prompt's own pass
        for at, drafted in enumerate(steps.drafted):
            assert drafted <= max(0, cap - 2 - sum(steps.emitted[:at]))  # what could still be emitted, less the bonus


@pytest.mark.parametrize(("method", "k"), ARMS)
def test_stop_strings_cut_alike_on_every_path(loaded: LoadedModel, draft: LoadedModel, method: str, k: int) -> None:
    whole = loaded.tokenizer.decode(generate(loaded, PROMPT, 40))
    stop = whole[9:11]
    answer = run(
        make_core(loaded, draft), [request("a", PROMPT, method=method, k=k, max_tokens=40, stop=(stop,), logprobs=1)]
    )["a"]
    assert answer.text == whole[: whole.find(stop)]
    assert answer.finish_reason == "stop"
    assert [one.token_id for one in answer.logprobs] == answer.tokens
    assert stop not in loaded.tokenizer.decode(answer.tokens)


@pytest.mark.parametrize(("method", "k"), ARMS)
def test_eos_inside_a_run(loaded: LoadedModel, method: str, k: int) -> None:
    """One of the model's own tokens is declared EOS; as its own draft it proposes and accepts beyond it."""
    import dataclasses

    reference = generate(loaded, PROMPT, 20)
    end = next(at for at, token in enumerate(reference) if at >= 6 and at % 5 == 2 and token not in reference[:at])
    ending = dataclasses.replace(loaded, eos_ids=frozenset({reference[end]}))
    answer = run(make_core(ending, loaded), [request("a", PROMPT, method=method, k=k)])["a"]
    assert answer.tokens == reference[:end]
    assert answer.finish_reason == "stop"
    metrics = answer.metrics.breakeven
    spec = answer.metrics.speculative_decoding
    assert metrics is not None
    assert spec is not None
    assert sum(metrics.emitted) == end  # end - 1 delivered after the first, and EOS
    assert spec.num_accepted_draft_tokens + spec.num_spec_steps + metrics.undrafted == sum(metrics.emitted)


def test_streamed_equals_unstreamed_text(loaded: LoadedModel, draft: LoadedModel) -> None:
    answer = run(make_core(loaded, draft), [request("a", PROMPT, method="draft_model", k=5, max_tokens=60)])["a"]
    assert "".join(answer.pieces) == loaded.tokenizer.decode(answer.tokens, skip_special_tokens=True)
    assert len([piece for piece in answer.pieces if piece]) > 1


def test_logprobs_are_the_raw_models_own(loaded: LoadedModel, draft: LoadedModel) -> None:
    model: Any = loaded.model
    answer = run(
        make_core(loaded, draft),
        [request("a", PROMPT, method="draft_model", k=3, logprobs=3, logit_bias={50: 4.0}, temperature=0.7, seed=1)],
    )["a"]
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([PROMPT + answer.tokens]), use_cache=False).logits[0, len(PROMPT) - 1 :]
    want = torch.log_softmax(logits, -1)
    assert len(answer.logprobs) == len(answer.tokens)
    for at, one in enumerate(answer.logprobs):
        assert math.isclose(one.logprob, float(want[at, one.token_id]), abs_tol=1e-3)
        assert [token for token, _ in one.top] == want[at].topk(3).indices.tolist()


def test_seeded_requests_repeat_themselves(loaded: LoadedModel, draft: LoadedModel) -> None:
    for method, k in ARMS:
        asked = [request(str(seed), PROMPT, method=method, k=k, temperature=1.0, seed=seed) for seed in (7, 8)]
        first, again = run(make_core(loaded, draft), asked), run(make_core(loaded, draft), asked[::-1])
        assert first["7"].tokens == again["7"].tokens
        assert first["7"].tokens != first["8"].tokens


def test_requests_without_a_seed_differ(loaded: LoadedModel) -> None:
    answers = run(make_core(loaded), [request(str(at), PROMPT, temperature=1.0) for at in range(3)])
    assert len({tuple(answer.tokens) for answer in answers.values()}) == 3


def test_abort_while_queued_is_never_decoded(loaded: LoadedModel) -> None:
    core = make_core(loaded, max_batch=1)
    core.add(request("first", PROMPT))
    core.add(request("second", PROMPT))
    core.abort("second")
    core.abort("unknown")
    answers: dict[str, Answer] = {}
    while core.has_work():
        collect(answers, core.step())
    assert (answers["second"].finish_reason, answers["second"].tokens) == ("abort", [])
    assert answers["first"].finish_reason in {"length", "stop"}


def test_abort_while_running_frees_everything(loaded: LoadedModel, draft: LoadedModel) -> None:
    core = make_core(loaded, draft, prefix_reuse=False)
    core.add(request("a", PROMPT, method="draft_model", k=3, max_tokens=100, ignore_eos=True))
    for _ in range(4):
        core.step()
    core.abort("a")
    answers: dict[str, Answer] = {}
    collect(answers, core.step())
    assert answers["a"].finish_reason == "abort"
    assert answers["a"].metrics is not None
    assert not core.has_work()
    stats = core.stats()
    assert (stats.running, stats.waiting, stats.kv_tokens_used) == (0, 0, 0)
    core.abort("a")
    assert core.step() == []


def test_the_queue_bound(loaded: LoadedModel) -> None:
    core = make_core(loaded, max_waiting=2, max_batch=1)
    core.add(request("a", PROMPT))
    core.add(request("b", PROMPT))
    with pytest.raises(QueueFull) as full:
        core.add(request("c", PROMPT))
    assert full.value.retry_after_s > 0
    core.step()
    core.add(request("c", PROMPT))


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"method": "draft_model", "k": 2}, "speculation.method"),
        ({"method": "ngram", "k": 99}, "speculation.k"),
        ({"max_tokens": 100_000}, "max_tokens"),
    ],
)
def test_what_this_process_cannot_serve_is_refused(loaded: LoadedModel, change: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestRejected) as refusal:
        make_core(loaded).add(request("a", PROMPT, **change))
    assert refusal.value.param == param


def test_a_prompt_without_tokens_is_refused(loaded: LoadedModel) -> None:
    with pytest.raises(RequestRejected, match="at least one") as refusal:
        make_core(loaded).add(request("a", []))
    assert refusal.value.param == "prompt"


def test_adding_from_other_threads_while_stepping(loaded: LoadedModel, draft: LoadedModel) -> None:
    core = make_core(loaded, draft)
    answers: dict[str, Answer] = {}

    def send(lane: int) -> None:
        for at in range(8):
            method, k = ARMS[at % 4]
            core.add(request(f"{lane}-{at}", [lane + 5, at + 5, 9], method=method, k=k, max_tokens=6))
            if at == 5:
                core.abort(f"{lane}-{at}")

    threads = [threading.Thread(target=send, args=(lane,)) for lane in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) or core.has_work():  # in this order: the last may add and end
        collect(answers, core.step())
    for thread in threads:
        thread.join()
    assert len(answers) == 32
    assert all(answer.finish_reason for answer in answers.values())


def test_in_flight_control_stops_a_draft_that_does_not_pay(loaded: LoadedModel) -> None:
    hopeless = random_model("llama", seed=77)
    adaptive = Adaptive(break_even=[(2, 1.5), (4, 2.0)], prior=[0.7], strength=8.0, probe=0)
    arms = {"keeps": None, "stops": adaptive}
    answers = {
        name: run(
            make_core(loaded, hopeless, profile=False),
            [request("a", PROMPT, method="draft_model", k=4, adaptive=wish, max_tokens=60, ignore_eos=True)],
        )["a"]
        for name, wish in arms.items()
    }
    keeps, stops = answers["keeps"].metrics.breakeven, answers["stops"].metrics.breakeven
    assert keeps is not None
    assert stops is not None
    assert stops.switches >= 1
    assert keeps.switches == 0
    assert stops.undrafted > 30 > keeps.undrafted
    assert answers["keeps"].tokens == answers["stops"].tokens


def test_load_is_reported(loaded: LoadedModel) -> None:
    answers = run(make_core(loaded), [request(str(at), PROMPT, ignore_eos=True) for at in range(3)])
    for answer in answers.values():
        assert answer.metrics.breakeven is not None
        assert answer.metrics.breakeven.batch_mean == 3.0
        assert answer.metrics.breakeven.plain_s > 0


def test_eos_of_the_fixture_is_special(loaded: LoadedModel) -> None:
    assert loaded.eos_ids == {EOS}
