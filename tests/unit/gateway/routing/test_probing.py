"""When another arm is tried, and what is taken first where nothing is known of a task."""

from __future__ import annotations

import random

import pytest

from gateway.routing import build_snapshot
from gateway.routing.estimates import Estimate, Evidence
from gateway.routing.snapshot import Node
from gateway.routing.states import NodeState, probe_share
from gateway.routing.tuning import Tuning
from gateway.types import Arm, RequestRecord
from tests.unit.gateway.routing.build import ARMS, NOW, buckets_of, costs, record, steps

DEAR = costs(0.02, 0.3)
"""A draft of 8 takes 3.4 plain steps."""


def node(records: list[RequestRecord], task: str) -> Node:
    snapshot = build_snapshot(buckets_of(records), {"engine": DEAR}, now=NOW, arms={"engine": ARMS})
    return snapshot.node(("engine", task, "0", "512", 1))


def ran(task: str, k: int, n: int, p: float) -> list[RequestRecord]:
    rng = random.Random(7)
    return [record(Arm("engine", "ngram", k), *steps(rng, p, k, 60), task=task) for _ in range(n)]


def one_draft(gap: float, se: float, requests: float) -> Evidence:
    """A draft that is slower than plain by `gap`, give or take."""
    draft = Estimate(("ngram", 4), requests=requests, r=1 + gap, se=se)
    return Evidence(0.01, [Estimate(("plain", 0)), draft], [[0.0, se], [se, 0.0]], [[0.0, -gap], [gap, 0.0]])


@pytest.mark.parametrize(
    ("gap", "se", "seen", "often"),
    [(0.02, 0.1, 20.0, True), (0.2, 0.15, 20.0, False), (0.15, 0.12, 20.0, False), (0.15, 0.12, 5000.0, True)],
    ids=["a near tie", "far off", "not worth it for few requests", "worth it for many"],
)
def test_a_draft_is_tried_often_only_where_it_may_bring_more_than_that_costs(
    gap: float, se: float, seen: float, often: bool
) -> None:
    tuning = Tuning()
    share, arms = probe_share(NodeState(seen=seen), one_draft(gap, se, 8.0), tuning)
    assert arms == [("ngram", 4)]
    assert (share == tuning.probe_max) is often
    assert share > 0, "off is never absorbing"


def test_a_longer_draft_is_not_tried_before_the_shorter_one_has_told_of_it() -> None:
    early, later = (node(ran("code", 2, n, 0.55), "code") for n in (2, 6))
    assert early.state.incumbent == later.state.incumbent == ("ngram", 2)
    assert early.probe_share == 0.0
    assert later.probe_share > 0.0


def test_a_new_task_judges_a_length_that_no_task_has_run_by_the_shorter_ones() -> None:
    """Drafts of 4 lost elsewhere: one of 8, which never ran, is not taken to be better than they are."""
    found = node(ran("creative", 4, 6, 0.1), "code")
    two, four, eight = found.evidence.arms[1:]
    assert [arm.requests for arm in (two, four, eight)] == [0, 0, 0]
    assert 1.0 < two.r < four.r < eight.r


def test_lengths_that_only_other_tasks_have_run_differ_less_than_each_is_unsure() -> None:
    evidence = node(ran("creative", 8, 6, 0.5), "code").evidence
    _, _, four, eight = evidence.arms
    assert evidence.spread[3][2] < 0.7 * (four.se**2 + eight.se**2) ** 0.5
    assert evidence.spread[3][2] >= abs(eight.se - four.se)
