"""Speculation leaves the distribution as it is: the first three tokens, jointly, under every sampling feature.

The reference is exact: the joint distribution, enumerated from the model, with the warper written out anew.
Test: Pearson's chi-squared, outcomes expected less than 5 times pooled; the false-alarm rate over all cases
together is below 1e-4 (Bonferroni). Power is shown by planting each known bug and seeing the same test find it.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
import torch
from scipy.stats import chi2

import engine.spec_decode.draft_model as drafting
from engine import sampler
from engine.models import LoadedModel
from tests.fixtures.core import make_core, noisy_copy, random_model, request, run
from tests.fixtures.heads import fitted_head, head_file
from tests.fixtures.results import keep_result

HEAD: list[str] = []
VOCAB = 6
PROMPT = [3, 4, 3, 4, 5, 3, 4]
SAMPLES = 800
PLANTED_SAMPLES = 500
"""Fewer than any test takes: every planted bug is found already with these."""
LONG_SAMPLES = 4000
ALPHA = 5e-6
"""False-alarm rate of one case; 10 run by default, together below 1e-4."""
FEATURES: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 1.3},
    "top_p": {"top_p": 0.8},
    "top_k": {"top_k": 3},
    "min_p": {"min_p": 0.15},
    "penalties": {
        "presence_penalty": 2.0, "frequency_penalty": 2.0, "repetition_penalty": 1.3, "logit_bias": {3: 4.0, 4: 3.0},
    },
    "logit_bias": {"logit_bias": {5: 1.5, 3: -1.0}},
    "all": {
        "temperature": 0.8, "top_p": 0.9, "top_k": 5, "min_p": 0.02, "frequency_penalty": 0.6, "logit_bias": {4: 0.7},
    },
}  # fmt: skip


CASES = [(feature, "draft_model") for feature in FEATURES] + [("temperature", "ngram"), ("all", "ngram")]
CASES += [("all", "eagle")]


@pytest.fixture(scope="module")
def models() -> tuple[LoadedModel, LoadedModel]:
    target = random_model("llama", seed=3, layers=1, vocab=VOCAB, eos_token_id=None)
    return target, noisy_copy(target, scale=0.15)


@pytest.fixture(scope="module", autouse=True)
def head(models: tuple[LoadedModel, LoadedModel], tmp_path_factory: pytest.TempPathFactory) -> None:
    """A feature-fed head that knows four of the six tokens, fitted to some texts."""
    texts = [[3, 4, 5, 3, 1, 0, 2, 4], [5, 5, 3, 4, 1, 2, 3, 3], [0, 1, 4, 3, 2, 5, 5, 4]]
    made = fitted_head(models[0], texts, taps=(1,), skip=3)
    HEAD.append(head_file(tmp_path_factory.mktemp("head"), made))


@torch.inference_mode()
def next_probs(loaded: LoadedModel, output: tuple[int, ...], params: dict[str, Any]) -> list[float]:
    """The definition, in plain Python, of what the next token's distribution is."""
    model: Any = loaded.model
    logits: list[float] = model(input_ids=torch.tensor([[*PROMPT, *output]]), use_cache=False).logits[0, -1].tolist()
    for token in {*PROMPT, *output}:
        penalty = params.get("repetition_penalty", 1.0)
        logits[token] = logits[token] / penalty if logits[token] > 0 else logits[token] * penalty
    for token, count in Counter(output).items():
        logits[token] -= params.get("presence_penalty", 0) + count * params.get("frequency_penalty", 0)
    for token, bias in params.get("logit_bias", {}).items():
        logits[token] += bias
    probs = torch.softmax(torch.tensor(logits, dtype=torch.float64) / params.get("temperature", 1.0), 0).tolist()
    order = sorted(range(VOCAB), key=lambda token: -probs[token])[: params.get("top_k") or VOCAB]
    mass = sum(probs[token] for token in order)
    nucleus, before = [], 0.0
    for token in order:
        if before >= params.get("top_p", 1.0):
            break
        nucleus.append(token)
        before += probs[token] / mass
    least = params.get("min_p", 0.0) * probs[order[0]]
    final = {token: probs[token] for token in nucleus if probs[token] >= least}
    return [final.get(token, 0.0) / sum(final.values()) for token in range(VOCAB)]


def joint(loaded: LoadedModel, params: dict[str, Any]) -> dict[tuple[int, ...], float]:
    outcomes: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(3):
        outcomes = {
            (*text, token): mass * p
            for text, mass in outcomes.items()
            for token, p in enumerate(next_probs(loaded, text, params))
            if p > 0
        }
    return outcomes


def p_value(seen: Counter[tuple[int, ...]], want: dict[tuple[int, ...], float]) -> float:
    """Chi-squared with rare outcomes pooled; an impossible outcome gives 0."""
    total = sum(seen.values())
    if any(text not in want for text in seen):
        return 0.0
    cells = [(seen[text], total * mass) for text, mass in want.items() if total * mass >= 5]
    rest = total - sum(count for count, _ in cells), total - sum(mean for _, mean in cells)
    if rest[1] >= 1:
        cells.append(rest)
    statistic = sum((count - mean) ** 2 / mean for count, mean in cells)
    return float(chi2.sf(statistic, len(cells) - 1))


def sample(
    models: tuple[LoadedModel, LoadedModel], params: dict[str, Any], method: str, k: int, samples: int
) -> Counter[tuple[int, ...]]:
    core = make_core(
        *models, draft_head=HEAD[-1], max_batch=64, max_waiting=samples, kv_tokens=64 * 64, prefix_reuse=False
    )
    asked = [
        request(
            str(seed),
            PROMPT,
            method=method,
            k=k,
            seed=seed,
            max_tokens=4,
            ignore_eos=True,
            **({"temperature": 1.0} | params),
        )
        for seed in range(samples)
    ]
    answers = run(core, asked)
    return Counter(tuple(answer.tokens[:3]) for answer in answers.values())


@pytest.mark.slow
@pytest.mark.parametrize(("feature", "method"), CASES)
def test_joint_distribution(models: tuple[LoadedModel, LoadedModel], feature: str, method: str) -> None:
    params = FEATURES[feature]
    assert p_value(sample(models, params, method, 2, SAMPLES), joint(models[0], params)) > ALPHA


def softmaxed_residual(target: torch.Tensor, draft: torch.Tensor | None, token: int) -> torch.Tensor:
    rest = target.clone() if draft is None else (target - draft).clamp(min=0)
    return torch.softmax(rest, 0)


def target_as_residual(target: torch.Tensor, draft: torch.Tensor | None, token: int) -> torch.Tensor:
    return target


def stale_penalties(logits: torch.Tensor, state: Any, before: Any) -> torch.Tensor:
    """Drafts before the position are not counted."""
    return WARP(logits, state, [])


def raw(logits: torch.Tensor, state: Any, before: Any) -> torch.Tensor:
    """The parameters are ignored."""
    return logits.to(torch.float32)


def count_beyond_rejection(logits: torch.Tensor, draft: sampler.Draft, state: Any) -> tuple[list[int], int]:
    """Drafts that would be accepted after the first rejected one count as well."""
    accepted = 0
    for position, token in enumerate(draft.tokens):
        target = torch.softmax(sampler.warp(logits[position], state, draft.tokens[:position]), dim=-1)
        source = draft.probs[position][token] if draft.probs is not None else 1.0
        accepted += bool(state.accept.random() * float(source) < float(target[token]))
    kept = draft.tokens[:accepted]
    last = torch.softmax(sampler.warp(logits[accepted], state, kept), dim=-1)
    return [*kept, sampler.draw(last, state.bonus)], accepted


class Zero(random.Random):
    """Accepts everything that has any probability."""

    def random(self) -> float:
        return 0.0


def accept_all(self: Any, params: Any, prompt: Any, seed: int, *more: Any) -> None:
    STATE(self, params, prompt, seed, *more)
    self.accept = Zero()


def one_stream(self: Any, params: Any, prompt: Any, seed: int, *more: Any) -> None:
    """Every decision replays the same numbers."""
    STATE(self, params, prompt, seed, *more)
    self.draft, self.accept, self.residual, self.bonus = (random.Random(seed) for _ in range(4))


WARP = sampler.warp
STATE = sampler.SamplerState.__init__
BUGS: dict[str, tuple[Any, str, Any, str]] = {
    "residual by softmax": (sampler, "residual", softmaxed_residual, "temperature"),
    "residual not subtracted": (sampler, "residual", target_as_residual, "temperature"),
    "counting beyond the first rejection": (sampler, "verify", count_beyond_rejection, "temperature"),
    "penalties blind to earlier drafts": (sampler, "warp", stale_penalties, "penalties"),
    "uniform draw hard-wired to 0": (sampler.SamplerState, "__init__", accept_all, "temperature"),
    "streams not separate": (sampler.SamplerState, "__init__", one_stream, "temperature"),
    "min_p ignored": (sampler, "warp", raw, "min_p"),
    "logit_bias ignored": (sampler, "warp", raw, "logit_bias"),
}
"""Where each known bug is planted, and under which feature it must be found."""


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS)
def test_planted_bugs_are_found(
    models: tuple[LoadedModel, LoadedModel], monkeypatch: pytest.MonkeyPatch, bug: str
) -> None:
    place, name, wrong, feature = BUGS[bug]
    monkeypatch.setattr(place, name, wrong)
    params = FEATURES[feature]
    assert p_value(sample(models, params, "draft_model", 2, PLANTED_SAMPLES), joint(models[0], params)) < ALPHA


LONG_CASES = [
    *((feature, method, k) for feature in FEATURES for method in ("draft_model", "ngram") for k in (1, 2)),
    *((feature, "suffix", 2) for feature in ("temperature", "penalties", "all")),
    *((feature, method, 2) for feature in ("temperature", "penalties", "all") for method in ("eagle", "hybrid")),
]
"""Three tokens leave no more than two to draft after the prompt's own; suffix drafts are verified as n-gram's are."""


@pytest.mark.verify
@pytest.mark.parametrize(("feature", "method", "k"), LONG_CASES)
def test_joint_distribution_at_length(
    models: tuple[LoadedModel, LoadedModel], feature: str, method: str, k: int
) -> None:
    """37 cases, together below 1.2e-4."""
    params = FEATURES[feature]
    p = p_value(sample(models, params, method, k, LONG_SAMPLES), joint(models[0], params))
    keep_result("sampler_distribution", {f"{feature}, {method}, k {k}": {"samples": LONG_SAMPLES, "p_value": p}})
    assert p > 3e-6


def test_drafting_uses_the_same_warper() -> None:
    assert drafting.warp is sampler.warp
