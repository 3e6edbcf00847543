"""Drafts beside plain requests: as long as measured costs allow, untouched where nothing is known."""

from __future__ import annotations

import pytest

from engine.company import LIMIT, longest_fitting
from engine.costs import CostModel, StepTiming
from engine.messages import CostCell
from tests.fixtures.core import make_core, random_model, request


def cells(verify: dict[int, float], drafts: dict[str, float] | None = None) -> list[CostCell]:
    """Cells at batch 8 in which a plain step takes 10 ms; `verify` in plain steps by k, `drafts` per draft token."""
    return [
        CostCell(batch=8, context=0, k=k, method=method, draft_s=0.01 * each * k, verify_s=0.01 * x, plain_s=0.01, n=4)
        for method, each in (drafts or {"ngram": 0.0}).items()
        for k, x in verify.items()
    ]


@pytest.mark.parametrize(
    ("verify", "share", "want"),
    [
        ({1: 1.01, 4: 1.05, 8: 1.08}, 1.0, 8),
        ({1: 1.01, 4: 1.03, 8: 1.20}, 1.0, 5),  # 1.03 at 4, 1.0725 at 5, 1.115 at 6
        ({1: 1.01, 4: 1.05, 8: 1.20}, 0.5, 8),  # half of the requests: 4 tokens each on the average
        ({1: 1.40, 4: 2.00, 8: 3.00}, 0.5, 0),
        ({4: 0.80, 8: 1.05}, 1.0, 8),  # cheaper than plain is noise
        ({1: 1.01, 2: 1.035}, 1.0, 4),  # beyond what was measured, along the last stretch
    ],
)
def test_verification_sets_the_length(verify: dict[int, float], share: float, want: int) -> None:
    assert longest_fitting(cells(verify), ["ngram"], share, 8)[0] == want


def test_what_a_step_leaves_is_the_next_ones() -> None:
    """On the average steps keep to the limit, although no draft of one token does; and none takes long."""
    known = cells({1: 1.14, 8: 2.2})
    credit, drafted = 0.0, []
    for _ in range(700):
        k, credit = longest_fitting(known, ["ngram"], 1.0, 8, credit)
        drafted.append(k)
    assert set(drafted) == {0, 1}
    assert sum(drafted) * 0.14 / len(drafted) == pytest.approx(LIMIT - 1, abs=0.002)
    for _ in range(100):
        _, credit = longest_fitting(cells({1: 9.0}), ["ngram"], 1.0, 8, credit)
    assert longest_fitting(known, ["ngram"], 1.0, 8, credit)[0] == 2


def test_time_to_draft_counts_for_the_methods_at_work() -> None:
    known = cells({1: 1.0, 8: 1.0}, {"ngram": 0.0, "draft_model": 0.025})
    assert longest_fitting(known, ["ngram"], 0.5, 8)[0] == 8
    assert longest_fitting(known, ["draft_model"], 0.5, 8)[0] == 3
    assert longest_fitting(known, ["draft_model", "ngram"], 0.5, 8)[0] == 3


def test_nothing_known_changes_nothing() -> None:
    assert longest_fitting([], ["ngram"], 0.5, 6) == (6, 0.0)


def costs(x: float) -> CostModel:
    model = CostModel()
    for batch in (1, 2, 4, 8):
        for k in (1, 2, 4, 8):
            model.observe(batch=batch, context=0, k=0, method="plain", timing=StepTiming(0.0, 1.0))
            model.observe(batch=batch, context=0, k=k, method="ngram", timing=StepTiming(0.0, 1.0 + x * k))
    model.profiled = True
    model.observe = lambda **_: None  # type: ignore[method-assign]  # the real steps must not change the table
    return model


@pytest.mark.parametrize(("x", "longest"), [(0.0, 6), (0.1, 2), (1.0, 0)])
def test_plain_requests_beside_them_shorten_drafts(x: float, longest: int) -> None:
    """The limit holds while a plain request decodes in the same step, and no longer."""
    core = make_core(random_model("llama"))
    core._costs = costs(x)
    text = [5, 6, 7, 8] * 10
    core.add(request("plain", text, max_tokens=30, ignore_eos=True))
    core.add(request("drafts", text, method="ngram", k=6, max_tokens=200, ignore_eos=True))
    beside, alone = set(), set()
    while core.has_work():
        plain, drafts = core._runs.get("plain"), core._runs.get("drafts")
        both = plain is not None and plain.sequence.prefilled
        core.step()
        if drafts is not None and drafts.metrics.step_drafted:
            (beside if both else alone).add(drafts.metrics.step_drafted[-1])
    assert max(beside) == longest
    assert max(alone) == 6
