"""The warper against definitions written out by hand, and the verifier's edges."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch

from engine.sampler import Draft, Sampler, SamplerState, argmax, draw, residual, verify, warp
from engine.sequence import SamplingParams

INF = float("inf")


def state(prompt: tuple[int, ...] = (), output: tuple[int, ...] = (), **params: Any) -> SamplerState:
    made = SamplerState(SamplingParams(**params), prompt, seed=1)
    made.count(output)
    return made


def kept(logits: torch.Tensor) -> set[int]:
    return {at for at, value in enumerate(logits.tolist()) if value > -INF}


LOGITS = torch.log(torch.tensor([0.4, 0.3, 0.2, 0.1]))


@pytest.mark.parametrize(
    ("params", "survivors"),
    [
        ({"top_k": 2}, {0, 1}),
        ({"top_k": 9}, {0, 1, 2, 3}),
        ({"top_p": 0.39}, {0}),
        ({"top_p": 0.41}, {0, 1}),
        ({"top_p": 0.71}, {0, 1, 2}),
        ({"top_p": 1e-9}, {0}),
        ({"min_p": 0.6}, {0, 1}),
        ({"min_p": 1.0}, {0}),
        ({"top_k": 3, "top_p": 0.75}, {0, 1}),  # of the renormalised 0.44, 0.33, 0.22
        ({"temperature": 0.1, "top_p": 0.9}, {0}),
    ],
)
def test_truncation(params: dict[str, Any], survivors: set[int]) -> None:
    assert kept(warp(LOGITS, state(**params), [])) == survivors


def test_temperature_divides_the_logits() -> None:
    torch.testing.assert_close(warp(LOGITS, state(temperature=0.5), []), LOGITS * 2)


def test_penalties_count_output_and_earlier_drafts() -> None:
    raw = torch.tensor([1.0, 1.0, 1.0, -1.0])
    seen = state(prompt=(0,), output=(1, 1), presence_penalty=0.5, frequency_penalty=0.25)
    torch.testing.assert_close(warp(raw, seen, [1, 3]), torch.tensor([1.0, 1 - 0.5 - 0.75, 1.0, -1 - 0.5 - 0.25]))
    assert seen.counts == {1: 2}


def test_repetition_penalty_divides_positive_and_multiplies_negative() -> None:
    raw = torch.tensor([2.0, 2.0, -1.0, -1.0])
    seen = state(prompt=(0,), output=(2,), repetition_penalty=2.0)
    torch.testing.assert_close(warp(raw, seen, [3]), torch.tensor([1.0, 2.0, -2.0, -2.0]))


def test_logit_bias_is_added() -> None:
    torch.testing.assert_close(warp(torch.zeros(3), state(logit_bias={2: 5.0}), []), torch.tensor([0.0, 0.0, 5.0]))


def test_warping_leaves_the_raw_logits_alone() -> None:
    raw = LOGITS.clone()
    warp(raw, state(temperature=0.3, top_k=1, presence_penalty=1, output=(0,), logit_bias={1: 3}), [2])
    torch.testing.assert_close(raw, LOGITS)


class Fixed(random.Random):
    """A stream that always gives the same number."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def random(self) -> float:
        return self.value


@pytest.mark.parametrize(("u", "token"), [(0.0, 1), (0.49, 1), (0.5, 3), (math.nextafter(1, 0), 3)])
def test_drawing_never_yields_what_has_no_probability(u: float, token: int) -> None:
    assert draw(torch.tensor([0.0, 0.5, 0.0, 0.5, 0.0]), Fixed(u)) == token


def test_u_zero_does_not_accept_a_token_of_probability_zero() -> None:
    seen = state(top_k=1)
    seen.accept = Fixed(0.0)
    tokens, accepted = verify(LOGITS.expand(2, -1), Draft([3]), seen)
    assert (tokens, accepted) == ([0], 0)


def test_residual_is_normalised_not_softmaxed() -> None:
    target = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    draft = torch.tensor([0.2, 0.2, 0.6], dtype=torch.float64)
    torch.testing.assert_close(residual(target, draft, 2), torch.tensor([0.75, 0.25, 0.0], dtype=torch.float64))


def test_residual_without_mass_falls_back_to_the_target() -> None:
    target = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64)
    torch.testing.assert_close(residual(target, target.clone(), 0), target)


def test_nothing_counts_after_the_first_rejection() -> None:
    logits = torch.full((4, 5), -10.0)
    for position, best in enumerate((1, 2, 3, 4)):
        logits[position, best] = 10.0
    draft = Draft([1, 0, 3])
    for params in ({"temperature": 0.0}, {"temperature": 0.0, "logit_bias": {0: 0.1}}, {"temperature": 0.01}):
        verdict = Sampler().verify(logits, [(state(**params), draft)])[0]
        assert (verdict.tokens, verdict.accepted) == ([1, 2], 1)


def test_logprobs_come_from_the_raw_logits_and_stop_with_the_tokens() -> None:
    logits = torch.stack([LOGITS, LOGITS.flip(0), LOGITS])
    seen = state(temperature=0.0, logprobs=2, logit_bias={1: 50.0})
    verdict = Sampler().verify(logits, [(seen, Draft([1, 0]))])[0]
    assert verdict.tokens == [1, 1]
    assert [round(math.exp(one.logprob), 4) for one in verdict.logprobs] == [0.3, 0.2]
    assert [[token for token, _ in one.top] for one in verdict.logprobs] == [[0, 1], [3, 2]]


def test_streams_of_one_seed_are_separate_and_repeatable() -> None:
    first, again = state(), state()
    numbers = [stream.random() for stream in (first.draft, first.accept, first.residual, first.bonus)]
    assert len(set(numbers)) == 4
    assert numbers == [stream.random() for stream in (again.draft, again.accept, again.residual, again.bonus)]


def test_greedy_rows_share_a_pass_with_sampled_ones() -> None:
    logits = torch.stack([LOGITS, LOGITS.flip(0), LOGITS, LOGITS])
    rows = [
        (state(temperature=0.0), Draft([0])),
        (state(top_k=1), Draft([])),
        (state(temperature=0.0), Draft([])),
    ]
    assert [one.tokens for one in Sampler().verify(logits, rows)] == [[0, 3], [0], [0]]


def test_a_large_vocabulary_is_drawn_from_as_a_small_one() -> None:
    probs = torch.rand(5000, generator=torch.Generator().manual_seed(0))
    probs[torch.rand(5000, generator=torch.Generator().manual_seed(1)) < 0.5] = 0.0
    mass = torch.cumsum(probs.double(), 0)
    for u in [0.0, *(at / 97 for at in range(97)), math.nextafter(1, 0)]:
        token = draw(probs, Fixed(u))
        assert probs[token] > 0
        below = float(mass[token] - probs[token])
        assert below - 1e-6 <= u * float(mass[-1]) <= float(mass[token]) + 1e-6


def test_the_nucleus_of_a_flat_distribution_needs_every_logit() -> None:
    logits = torch.arange(3000) * -0.01
    probs = torch.softmax(logits.double(), 0)
    size = int((torch.cumsum(probs, 0) < 0.9999).sum()) + 1
    assert len(kept(warp(logits, state(top_p=0.9999), []))) == size


def test_max_takes_the_first_of_equals_as_argmax_does() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        logits = torch.randint(0, 4, (64, 5000), generator=torch.Generator().manual_seed(2)).to(dtype)
        assert argmax(logits) == logits.argmax(dim=-1).tolist()
