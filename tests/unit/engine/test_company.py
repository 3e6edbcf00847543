"""Drafts beside plain requests: as long as measured costs allow, untouched where nothing is known."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.company import LIMIT, Company
from engine.costs import CostModel, StepTiming
from engine.drafting import Want, chances_of
from engine.messages import CostCell
from engine.sampler import Draft, SamplerState
from tests.fixtures.core import make_core, random_model, request


def cells(verify: dict[int, float], drafts: dict[str, float] | None = None) -> list[CostCell]:
    """Cells at batch 8 in which a plain step takes 10 ms; `verify` in plain steps by k, `drafts` per draft token."""
    return [
        CostCell(batch=8, context=0, k=k, method=method, draft_s=0.01 * each * k, verify_s=0.01 * x, plain_s=0.01, n=4)
        for method, each in (drafts or {"ngram": 0.0}).items()
        for k, x in verify.items()
    ]


def rows(*lengths: int, chance: float = 0.5) -> list[list[float]]:
    """Chances by place in drafts of these lengths."""
    return [[chance ** (place + 1) for place in range(length)] for length in lengths]


@pytest.mark.parametrize(
    ("verify", "lengths", "want"),
    [
        ({1: 1.01, 4: 1.05, 8: 1.055}, (8, 8), (8, 8)),
        ({1: 1.01, 4: 1.03, 8: 1.20}, (8, 8), (5, 4)),  # 1.03 at 4, 1.051 at 4.5, 1.0725 at 5
        ({1: 1.01, 4: 1.05, 8: 1.20}, (8, 0), (8, 0)),  # the plain one leaves its room to the other
        ({1: 1.40, 4: 2.00, 8: 3.00}, (8, 0), (0, 0)),
        ({4: 0.80, 8: 1.05}, (8, 8), (8, 8)),  # cheaper than plain is noise
        ({1: 1.01, 2: 1.034}, (8, 8), (3, 3)),  # along the last stretch: 1.058 at 3
    ],
)
def test_verification_sets_the_room(verify: dict[int, float], lengths: tuple[int, ...], want: tuple[int, ...]) -> None:
    assert Company().share_out(cells(verify), {"ngram": 8}, rows(*lengths)) == list(want)


def test_the_likeliest_tokens_get_the_room() -> None:
    """Eight tokens fit; a draft that nobody believes in loses its places from the end, and a sure one keeps all."""
    known = cells({1: 1.0, 2: 1.055, 4: 1.5})
    sure, fair, poor = rows(5, chance=0.9)[0], rows(5, chance=0.5)[0], rows(5, chance=0.1)[0]
    assert Company().share_out(known, {"ngram": 5}, [sure, fair, poor, []]) == [5, 3, 0, 0]
    assert Company().share_out(known, {"ngram": 5}, [poor, [], sure, fair]) == [0, 0, 5, 3]
    assert Company().share_out(known, {"ngram": 5}, [poor, [], [], []]) == [5, 0, 0, 0]


@given(
    st.lists(st.lists(st.floats(0.0, 1.0), max_size=6), min_size=1, max_size=8),
    st.lists(st.floats(1.0, 2.0), min_size=1, max_size=4),
)
def test_places_go_from_the_first_and_never_beyond_the_room(steps: list[list[float]], verify: list[float]) -> None:
    chances = [[math.prod(each[: at + 1]) for at in range(len(each))] for each in steps]
    known = cells({k + 1: x for k, x in enumerate(sorted(verify))})
    kept = Company().share_out(known, {"ngram": 6}, chances)
    assert all(0 <= length <= len(row) for length, row in zip(kept, chances, strict=True))
    left_out = [row[length] for row, length in zip(chances, kept, strict=True) if length < len(row)]
    taken = [row[length - 1] for row, length in zip(chances, kept, strict=True) if length]
    assert not left_out or not taken or max(left_out) <= min(taken)


def test_what_a_step_leaves_is_the_next_ones() -> None:
    """On the average steps keep to the limit, although no draft of one token does; and none takes long."""
    known, company = cells({1: 1.14, 8: 2.2}), Company()
    drafted = [company.share_out(known, {"ngram": 8}, rows(8))[0] for _ in range(700)]
    assert set(drafted) == {0, 1}
    assert sum(drafted) * 0.14 / len(drafted) == pytest.approx(LIMIT - 1, abs=0.002)
    for _ in range(100):
        company.share_out(cells({1: 9.0}), {"ngram": 8}, rows(8))
    assert company.share_out(known, {"ngram": 8}, rows(8)) == [2]
    for _ in range(100):
        company.share_out(known, {"ngram": 0}, rows(0))  # nothing was found to draft: that leaves room, too
    assert company.share_out(known, {"ngram": 8}, rows(8)) == [2]


def test_where_the_first_token_is_dear_few_steps_draft_much() -> None:
    """Any draft costs 0.18 and each of its tokens 0.035: 0.06 a step are saved up until five tokens cost 0.355."""
    known, company = cells({1: 1.25, 2: 1.32, 4: 1.46}), Company()
    steps = [company.share_out(known, {"ngram": 4}, rows(4, 4)) for _ in range(12)]
    assert steps == [*[[0, 0]] * 5, [3, 2]] * 2


def test_time_to_draft_counts_for_the_models_at_work() -> None:
    known = cells({1: 1.0, 8: 1.0}, {"ngram": 0.0, "draft_model": 0.025})
    assert Company().longest(known, ["draft_model"], 0.5, 8) == 2
    assert Company().longest(known, [], 0.0, 0) == 0
    assert Company().longest(cells({1: 1.0, 8: 1.4}, {"draft_model": 0.01}), ["draft_model"], 0.5, 8) == 3  # 1.059
    dear = cells({1: 1.01, 8: 1.08}, {"ngram": 0.0, "draft_model": 0.024})
    assert Company().share_out(dear, {"ngram": 8, "draft_model": 2}, rows(8, 2)) == [1, 1]  # 0.012 are left


def test_nothing_known_changes_nothing() -> None:
    assert Company().longest([], ["draft_model"], 0.5, 6) == 6
    assert Company().share_out([], {"ngram": 6}, rows(6, 2)) == [6, 2]


def test_a_drawn_draft_is_shared_out_by_its_length_alone() -> None:
    """What a grammar has cut from it says what was drawn: its other tokens must not hang on that."""
    asked = request("r", [5, 6, 7], method="ngram", k=4)
    sequence = make_core(random_model("llama"))._intake.make(asked).sequence
    want = Want(sequence, SamplerState(asked.sampling, [5, 6, 7], 0), 4, 0.5)
    drawn = Draft([3, 4, 5, 6], torch.full((4, 64), 1 / 64))
    before = chances_of(want, drawn)
    drawn.cut(2)
    assert chances_of(want, drawn) == before == [0.5, 0.25, 0.125, 0.0625]
    assert chances_of(want, Draft([3, 4])) == [0.5, 0.25]


def costs(x: float) -> CostModel:
    model = CostModel()
    for batch in (1, 2, 4, 8):
        for k in (1, 2, 4, 8):
            model.observe(batch=batch, context=0, k=0, method="plain", timing=StepTiming(0.0, 1.0))
            model.observe(batch=batch, context=0, k=k, method="ngram", timing=StepTiming(0.0, 1.0 + x * k))
    model.profiled = True
    model.observe = lambda **_: None  # type: ignore[method-assign]  # the real steps must not change the table
    return model


@pytest.mark.parametrize("x", [0.0, 0.1, 1.0])
def test_plain_requests_beside_them_shorten_drafts(x: float) -> None:
    """Steps keep to the limit on the average while a plain request decodes in them, and no longer."""
    core = make_core(random_model("llama"))
    core._costs = core._drafting._costs = costs(x)
    text = [5, 6, 7, 8] * 10
    core.add(request("plain", text, max_tokens=30, ignore_eos=True))
    core.add(request("drafts", text, method="ngram", k=6, max_tokens=200, ignore_eos=True))
    beside, alone = [], []
    while core.has_work():
        plain, drafts = core._runs.get("plain"), core._runs.get("drafts")
        both = plain is not None and plain.sequence.prefilled
        core.step()
        if drafts is not None and drafts.metrics.step_drafted:
            (beside if both else alone).append(drafts.metrics.step_drafted[-1])
    assert sum(beside) * x / 2 <= (LIMIT - 1) * len(beside)
    assert (max(beside) > 0) == (x < 1.0)
    assert max(alone) == 6
