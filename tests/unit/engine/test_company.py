"""Drafts beside plain requests: as long as measured costs allow, untouched where nothing is known."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.company import LIMIT, PATIENCE, Company
from engine.costs import CostModel, StepTiming
from engine.drafting import Want, chances_of
from engine.messages import CostCell
from engine.mixed_costs import StepLine
from engine.sampler import Draft, SamplerState
from tests.fixtures.core import make_core, random_model, request


def cells(drafts: dict[str, float]) -> list[CostCell]:
    """Cells at batch 8 in which a plain step takes 10 ms; drafts take so many plain steps a token."""
    return [
        CostCell(batch=8, context=0, k=k, method=method, draft_s=0.01 * each * k, verify_s=0.01, plain_s=0.01, n=4)
        for method, each in drafts.items()
        for k in (1, 8)
    ]


NGRAM = cells({"ngram": 0.0})


def rows(*lengths: int, chance: float = 0.5) -> list[list[float]]:
    """Chances by place in drafts of these lengths."""
    return [[chance ** (place + 1) for place in range(length)] for length in lengths]


@pytest.mark.parametrize(
    ("line", "lengths", "want"),
    [
        (StepLine(0.0, 0.0), (8, 8), (8, 8)),
        (StepLine(0.0, 0.0031), (8, 8), (5, 4)),  # 9 tokens fit
        (StepLine(0.0, 0.0031), (8, 0), (8, 0)),  # the plain one leaves its room to the other
        (StepLine(0.015, 0.0031), (8, 8), (2, 2)),
        (StepLine(0.4, 0.1), (8, 0), (0, 0)),
    ],
)
def test_verification_sets_the_room(line: StepLine, lengths: tuple[int, ...], want: tuple[int, ...]) -> None:
    assert Company().share_out(line, NGRAM, {"ngram": 8}, rows(*lengths)) == list(want)


def test_the_likeliest_tokens_get_the_room() -> None:
    """Eight tokens fit; a draft that nobody believes in loses its places from the end, and a sure one keeps all."""
    line = StepLine(0.0, 0.0036)
    sure, fair, poor = rows(5, chance=0.9)[0], rows(5, chance=0.5)[0], rows(5, chance=0.1)[0]
    assert Company().share_out(line, NGRAM, {"ngram": 5}, [sure, fair, poor, []]) == [5, 3, 0, 0]
    assert Company().share_out(line, NGRAM, {"ngram": 5}, [poor, [], sure, fair]) == [0, 0, 5, 3]
    assert Company().share_out(line, NGRAM, {"ngram": 5}, [poor, [], [], []]) == [5, 0, 0, 0]


@given(
    st.lists(st.lists(st.floats(0.0, 1.0), max_size=6), min_size=1, max_size=8),
    st.builds(StepLine, st.floats(0.0, 0.2), st.floats(0.0, 0.1)),
)
def test_places_go_from_the_first_and_never_beyond_the_room(steps: list[list[float]], line: StepLine) -> None:
    chances = [[math.prod(each[: at + 1]) for at in range(len(each))] for each in steps]
    kept = Company().share_out(line, NGRAM, {"ngram": 6}, chances)
    assert line.at(sum(kept)) <= LIMIT - 1 + 1e-9
    assert all(0 <= length <= len(row) for length, row in zip(kept, chances, strict=True))
    left_out = [row[length] for row, length in zip(chances, kept, strict=True) if length < len(row)]
    taken = [row[length - 1] for row, length in zip(chances, kept, strict=True) if length]
    assert not left_out or not taken or max(left_out) <= min(taken)


def test_what_a_step_leaves_is_the_next_ones() -> None:
    """On the average steps keep to the limit, although no draft of one token does; and none takes long."""
    line, company = StepLine(0.0, 0.14), Company()
    drafted = [company.share_out(line, NGRAM, {"ngram": 8}, rows(8))[0] for _ in range(700)]
    assert set(drafted) == {0, 1}
    assert sum(drafted) * 0.14 / len(drafted) == pytest.approx(LIMIT - 1, abs=0.002)
    for _ in range(100):
        company.share_out(line, NGRAM, {"ngram": 0}, rows(0))  # nothing was found to draft: that leaves room, too
    assert company.share_out(line, NGRAM, {"ngram": 8}, rows(8)) == [2]


def test_where_any_draft_is_dear_few_steps_draft_much() -> None:
    """Any draft costs 0.18 and each of its tokens 0.035: 0.03 a step are saved up until four tokens cost 0.32."""
    line, company = StepLine(0.18, 0.035), Company()
    steps = [company.share_out(line, NGRAM, {"ngram": 4}, rows(4, 4)) for _ in range(22)]
    assert steps == [*[[0, 0]] * 10, [2, 2]] * 2


def test_where_no_draft_has_room_one_token_is_tried_now_and_then() -> None:
    """So that a cost measured too high is found out; what it takes is saved up again before the next try."""
    company = Company()
    steps = [sum(company.share_out(StepLine(0.9, 0.1), NGRAM, {"ngram": 8}, rows(8, 8))) for _ in range(1000)]
    assert set(steps) == {0, 1}
    assert steps.index(1) == PATIENCE
    assert sum(steps) == pytest.approx(1000 / (PATIENCE + 1), abs=1)
    assert sum(steps) <= 1000 * (LIMIT - 1)
    nothing = [sum(company.share_out(StepLine(0.9, 0.1), NGRAM, {"ngram": 8}, rows(0, 0))) for _ in range(100)]
    assert not any(nothing)


def test_where_every_step_drafts_one_does_not_now_and_then() -> None:
    """A cost measured too low shows beside a plain step only."""
    company = Company()
    steps = [sum(company.share_out(StepLine(0.0, 0.001), NGRAM, {"ngram": 4}, rows(4, 4))) for _ in range(150)]
    assert [at for at, tokens in enumerate(steps) if not tokens] == [PATIENCE, 2 * PATIENCE + 1, 3 * PATIENCE + 2]
    assert set(steps) == {0, 8}


def test_time_to_draft_counts_for_the_models_at_work() -> None:
    known, free = cells({"ngram": 0.0, "draft_model": 0.0125}), StepLine(0.0, 0.0)
    assert Company().longest(free, known, ["draft_model"], 4, 8) == 2
    assert Company().longest(free, known, ["ngram"], 4, 8) == 8
    assert Company().longest(StepLine(0.01, 0.001), cells({"draft_model": 0.005}), ["draft_model"], 2, 8) == 2  # 0.024
    line = StepLine(0.0, 0.0025)
    dear = cells({"ngram": 0.0, "draft_model": 0.012})
    assert Company().share_out(line, dear, {"ngram": 8, "draft_model": 2}, rows(8, 2)) == [1, 1]  # 0.006 are left


def test_a_draft_model_without_room_is_tried_now_and_then() -> None:
    company, dear = Company(), cells({"draft_model": 0.5})
    lengths = []
    for _ in range(150):
        k = company.longest(StepLine(0.0, 0.01), dear, ["draft_model"], 1, 4)
        lengths.append(company.share_out(StepLine(0.0, 0.01), dear, {"draft_model": k}, rows(k, 0))[0])
    assert [at for at, length in enumerate(lengths) if length] == [PATIENCE, 2 * PATIENCE + 1, 3 * PATIENCE + 2]


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
    model.observe_mixed = lambda **_: None  # type: ignore[method-assign]
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
