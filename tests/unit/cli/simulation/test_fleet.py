"""The fleet: servers whose times are known, measures of swinging, and small days with the live decision."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from click.testing import CliRunner

from cli.main import main
from cli.simulation.costs import CostModel, Line
from cli.simulation.fleet.figures import figures, reversals, sudden
from cli.simulation.fleet.gateways import Shared
from cli.simulation.fleet.run import DT, Fleet
from cli.simulation.fleet.servers import Job, Pool
from cli.simulation.fleet.settings import MADE_UP_COSTS, MADE_UP_TASKS, FleetSettings
from cli.simulation.fleet.traffic import arrivals
from cli.simulation.made_up import make_traces
from cli.simulation.replay import Steps, Table, build_table
from gateway.routing import Tuning
from gateway.types import Arm, CellKey

COSTS = CostModel(batch=1, overhead=0.0, verify=Line(0.01, 0.001, 0.0), draft=Line(0.002, 0.0, 0.0))
PLAIN, FAST = Arm("plain"), Arm("draft-k4", "draft_model", 4)
SMALL = FleetSettings(rate=1500.0, day_s=20.0, gateways=2, collapse=(2.0, 3.0))


@pytest.fixture(scope="module")
def table() -> Table:
    return build_table(make_traces(MADE_UP_TASKS, 8, 0, cap=150), MADE_UP_COSTS, (4,), cap=150)


def job(arm: Arm = PLAIN, tokens: int = 100, k: int = 0, at: float = 0.0) -> Job:
    rounds = tokens // (k + 1)
    return Job(0, arm, 0, Steps([k + 1] * rounds, [k] * rounds, 0.0), tokens, at)


def served(pool: Pool, jobs: list[Job]) -> list[Job]:
    for one in jobs:
        pool.add(one)
    done: list[Job] = []
    for tick in range(4000):
        done += pool.tick(tick * DT, DT)
        if not pool.busy:
            break
    return done


def test_a_batch_takes_what_the_cost_model_says() -> None:
    (alone,) = served(Pool(COSTS, 1, 8, 10_000), [job()])
    assert alone.finished == pytest.approx(100 * 0.011, abs=1e-6)
    (drafting,) = served(Pool(COSTS, 1, 8, 10_000), [job(FAST, k=4)])
    assert drafting.finished == pytest.approx(20 * (0.01 + 5 * 0.001 + 0.002), abs=1e-6)
    four = served(Pool(COSTS, 1, 8, 10_000), [job() for _ in range(4)])
    assert [one.finished for one in four] == pytest.approx([100 * 0.014] * 4, abs=1e-6)
    spread = served(Pool(COSTS, 4, 8, 10_000), [job() for _ in range(4)])
    assert [one.finished for one in spread] == pytest.approx([100 * 0.011] * 4, abs=1e-6)


def test_sequences_wait_for_slots_and_for_memory() -> None:
    first, second = served(Pool(COSTS, 1, 1, 10_000), [job(), job()])
    assert first.started == 0.0
    assert second.started == pytest.approx(first.finished, abs=DT)
    cramped = served(Pool(COSTS, 1, 8, 150), [job(), job()])
    assert cramped[1].started == pytest.approx(cramped[0].finished, abs=DT)
    pool = Pool(COSTS, 1, 8, 150)
    for one in (job(), job(), job()):
        pool.add(one)
    pool.tick(0.0, DT)
    assert (pool.load().running, pool.load().waiting) == (1, 2)
    assert pool.load().kv_used == pytest.approx(100 / 150)


def test_a_drafts_own_cache_shows_as_waiting() -> None:
    jobs = [job(at=0.0) for _ in range(8)]
    wide, narrow = Pool(COSTS, 1, 8, 800), Pool(COSTS, 1, 8, round(800 * 0.9))
    assert max(one.started for one in served(wide, jobs)) == 0.0
    assert max(one.started for one in served(narrow, [job() for _ in range(8)])) > 1.0


@pytest.mark.parametrize(
    ("share", "turns"),
    [([0.1, 0.5, 0.9], 0), ([0.1, 0.9, 0.1], 1), ([0.0, 1.0] * 4, 6), ([0.5, 0.6, 0.5, 0.6], 0), ([], 0)],
)
def test_turns_are_counted_where_they_are_large(share: list[float], turns: int) -> None:
    assert reversals(np.array(share)) == turns
    assert sudden(np.array([0.0, 0.1, 0.6, 0.7])) == pytest.approx(0.6)


def test_arrivals_come_at_the_days_rate_and_the_same_for_every_run(table: Table) -> None:
    day = list(arrivals(SMALL, table.traces))
    assert [one.at for one in day] == sorted(one.at for one in day)
    assert len(day) == pytest.approx(0.6 * SMALL.sampled_rate * SMALL.day_s, rel=0.2)
    noon = sum(7 <= one.at < 9 for one in day) / 2
    assert noon > 2 * sum(one.at < 2 for one in day) / 2
    assert day == list(arrivals(SMALL, table.traces))


def test_what_all_gateways_add_is_what_each_reads() -> None:
    shared, key = Shared(), CellKey("b", "1", "plain", 0, "code", "0", "512", 1)
    shared.add(30.0, [(key, {"n": 1})])
    (before,) = shared.buckets()
    shared.add(31.0, [(key, {"n": 2})])
    (after,) = shared.buckets()
    assert (before.counters, after.counters) == ({"n": 1}, {"n": 3})
    assert shared.buckets()[0] is after


def test_a_small_day_is_routed_to_the_faster_pool_and_every_request_is_answered(table: Table) -> None:
    fleet = Fleet(SMALL, table, Tuning(), engines=False)
    day = fleet.day()
    assert len(day.jobs) == len(list(arrivals(SMALL, table.traces)))
    assert all(one.arrived <= one.started <= one.first_token <= one.finished for one in day.jobs)
    early, late = ([float(j.arm == FAST) for j in day.jobs if first < j.arrived < first + 8] for first in (0, 12))
    assert np.mean(late) > max(0.6, float(np.mean(early)))
    found = figures(day)
    assert found["reversals_beside_events"] == 0
    assert json.dumps(found)


def test_a_draft_that_dies_everywhere_is_left_by_all_gateways(table: Table) -> None:
    dying = dataclasses.replace(SMALL, collapse=(0.5, 1.0), day_s=32.0)
    day = Fleet(dying, table, Tuning(), engines=True).day()
    before = [one.arm.k > 0 for one in day.jobs if 8 < one.arrived < 16]
    after = [one.arm.k > 0 for one in day.jobs if one.arrived > 26]
    assert np.mean(before) > 0.8
    assert np.mean(after) < 0.3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "Missing option '--traces'"),
        (["--traces", "x", "--costs", "y", "--method", "m", "--gateways", "3"], "'--gateways' needs '--fleet'"),
        (["--traces", "x", "--costs", "y", "--method", "m", "--busy", "0.5"], "'--busy' needs '--fleet'"),
        (["--fleet", "--busy", "0"], "Invalid value for '--busy'"),
        (["--fleet", "--batch", "4"], "'--batch' has no meaning with '--fleet'"),
        (["--fleet", "--traces", "x"], "Missing option '--method'"),
        (["--fleet", "--traces", "nowhere.jsonl", "--method", "ngram"], "nowhere.jsonl: cannot be read"),
    ],
)
def test_wrong_options_are_named(options: list[str], message: str) -> None:
    result = CliRunner().invoke(main, ["simulate", *options])
    assert result.exit_code != 0
    assert message in result.output
    assert "Traceback" not in result.output
