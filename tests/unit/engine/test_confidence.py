"""Drafts cut where their drafter has little confidence: worth it by the costs, and the distribution stays as it is."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import torch
from scipy.stats import chi2

from engine.control import Controller
from engine.messages import Adaptive, Speculation
from engine.sampler import Draft, Sampler, SamplerState, draw
from engine.sequence import SamplingParams
from engine.sequence import Sequence as Seq
from tests.fixtures.core import make_core, random_model, request, run

ALPHA = 1e-5
TARGET = torch.tensor([[0.5, 0.3, 0.15, 0.05], [0.1, 0.1, 0.4, 0.4], [0.25, 0.25, 0.25, 0.25], [0.7, 0.1, 0.1, 0.1]])
DRAFT = torch.tensor([[0.2, 0.2, 0.5, 0.1], [0.3, 0.4, 0.2, 0.1], [0.25, 0.25, 0.25, 0.25], [0.5, 0.2, 0.2, 0.1]])
"""Chance of the next token by the last one."""


def controller(*costs: tuple[int, float]) -> Controller:
    return Controller(8, Adaptive(break_even=list(costs), prior=[0.6]))


@pytest.mark.parametrize(
    ("confidence", "kept"),
    [
        ([0.9, 0.9, 0.9, 0.9], 4),
        ([0.9, 0.9, 0.02, 0.99], 2),  # nothing beyond a position that fails is worth more
        ([0.05, 0.99], 0),
        ([], 0),
        ([7.0, -1.0], 1),  # chances are taken as such
    ],
)
def test_a_token_stays_while_it_raises_tokens_per_cost(confidence: list[float], kept: int) -> None:
    rule = controller((1, 1.1), (2, 1.2), (3, 1.3), (4, 1.4))
    assert rule.keep(confidence) == kept


def test_lengths_without_a_cost_take_that_of_the_next_longer_one() -> None:
    assert controller((4, 1.1)).keep([0.9, 0.9, 0.9, 0.9, 0.9]) == 5
    assert controller((4, 3.0)).keep([0.9, 0.9, 0.9, 0.9]) == 0


def test_without_adaptive_nothing_is_cut() -> None:
    assert Controller(4, None).keep([0.0, 0.0]) == 2


def first_two(rng: random.Random, *, honest: bool, seed: int) -> tuple[int, int]:
    """Two tokens after token 0 by drafts of two, cut by confidence; rounds go on until two tokens are out."""
    state = SamplerState(SamplingParams(temperature=1.0), (), seed)
    rule = controller((1, 1.3), (2, 1.6))
    out = [0]
    while len(out) < 3:
        tokens: list[int] = []
        chances: list[float] = []
        for _ in range(2):
            last = tokens[-1] if tokens else out[-1]
            tokens.append(draw(DRAFT[last], rng))
            overlap = float(torch.minimum(TARGET[last], DRAFT[last]).sum())
            chances.append(overlap if honest else float(DRAFT[last][tokens[-1]]))
        probs = torch.stack([DRAFT[last] for last in (out[-1], tokens[0])])
        draft = Draft(tokens, probs, confidence=chances)
        draft.cut(rule.keep(chances))
        logits = torch.log(torch.stack([TARGET[last] for last in (out[-1], *draft.tokens)]))
        out += Sampler().verify(logits, [(state, draft)])[0].tokens
    return out[1], out[2]


def p_value(*, honest: bool, samples: int) -> float:
    rng = random.Random(1)
    seen = Counter(first_two(rng, honest=honest, seed=seed) for seed in range(samples))
    want = {(a, b): samples * float(TARGET[0, a] * TARGET[a, b]) for a in range(4) for b in range(4)}
    return float(chi2.sf(sum((seen[pair] - mean) ** 2 / mean for pair, mean in want.items()), len(want) - 1))


def test_cutting_by_what_precedes_a_token_leaves_the_distribution() -> None:
    assert p_value(honest=True, samples=1500) > ALPHA


def test_cutting_by_the_token_itself_is_found() -> None:
    """The test sees the bias that the rule in `Draft.confidence` forbids."""
    assert p_value(honest=False, samples=1500) < ALPHA


class Doubtful:
    """Proposes the last token again, sure of the first two positions and of no other."""

    def propose(self, wants: list[tuple[Seq, SamplerState, int]]) -> list[Draft]:
        return [Draft([seq.tokens[-1]] * k, confidence=([0.9, 0.9] + [0.01] * k)[:k]) for seq, _, k in wants]

    def release(self, request_id: str) -> None:
        """Nothing is kept."""


def test_the_core_verifies_no_more_than_is_worth_it() -> None:
    core = make_core(random_model("llama"))
    core._proposals._proposers["ngram"] = Doubtful()
    adaptive = Adaptive(break_even=[(k, 1.0 + 0.05 * k) for k in range(1, 7)], prior=[0.9])
    one = request("a", range(10, 40), method="ngram", k=6, adaptive=adaptive, max_tokens=20, ignore_eos=True)
    assert one.speculation == Speculation("ngram", 6, adaptive)
    found = run(core, [one])["a"].metrics.breakeven
    assert found is not None
    assert max(found.drafted) == 2
