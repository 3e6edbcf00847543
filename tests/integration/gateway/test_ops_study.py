"""A report's study from real databases: the same on SQLite and PostgreSQL, figures beside their queries."""

from __future__ import annotations

import random
import time

import msgspec
import pytest
from sqlalchemy import text

from gateway.db import Database
from gateway.db.sums import sums_of
from gateway.ops import render
from gateway.ops.collect import OpsReader
from gateway.types import Arm
from tests.fixtures.records import SPEC, make_record

PLAIN, DRAFTED = Arm("engine"), Arm("engine", "ngram", 4)
GAIN = {"code": 2.0, "creative": 0.5}


def traffic(now, each=400):
    """Requests of two tasks: one that gains, one that loses, a tenth of each kept plain by the draw."""
    rng = random.Random(5)
    for at in range(2 * each):
        task, held = ("code", "creative")[at % 2], at % 10 < 2
        arm, tokens = (PLAIN if held else DRAFTED), rng.randint(10, 60)
        tpot = 0.02 * rng.uniform(0.9, 1.1) / (1 if held else GAIN[task])
        record = make_record(
            f"r{at}", arm=arm, task=task, tpot_s=tpot, completion_tokens=tokens + 1, at=now - rng.random() * 5000,
            key_id="anonymous" if at % 4 < 2 else "other",
        )  # fmt: skip
        seconds = tpot * tokens
        spec = msgspec.structs.replace(
            SPEC, draft_s=0.1 * seconds, verify_s=0.9 * seconds, plain_s=0.0, undrafted=0, batch_mean=4.0
        )
        if held:
            spec = msgspec.structs.replace(
                spec, rounds=0, drafted=0, accepted=0, histogram=[], undrafted=tokens, draft_s=0.0, verify_s=0.0,
                plain_s=seconds,
            )  # fmt: skip
        decision = msgspec.structs.replace(record.decision, state="holdout" if held else "ok", arm=arm, holdout=0.2)
        yield msgspec.structs.replace(record, spec=spec, decision=decision)


async def filled(url, now):
    database = Database(url)
    await database.migrate()
    await database.insert_records(list(traffic(now)))
    return database


@pytest.fixture
async def both(tmp_path, postgres_url):
    now = time.time()
    opened = [await filled(url, now) for url in (f"sqlite:///{tmp_path}/study.db", postgres_url)]
    yield now, opened
    for database in opened:
        await database.aclose()


async def test_both_databases_give_the_same_study_and_it_is_the_truth(both):
    now, databases = both
    reports = [await OpsReader(database, clock=lambda: now).report(7200, study=True) for database in databases]
    told = [msgspec.to_builtins(report.study) for report in reports]
    for study in told:
        assert [query.pop("sql")[:6] for query in study["queries"]] == ["SELECT"] * 3
    assert told[0] == told[1]
    study = reports[0].study
    for gain in study.tasks:
        assert gain.time.low <= gain.time.gain <= gain.time.high
        assert gain.time.gain == pytest.approx(GAIN[gain.name], rel=0.05)
        assert gain.accelerator.gain == pytest.approx(gain.time.gain, rel=0.01)
        assert gain.accelerator.saved_s == pytest.approx(gain.time.saved_s / 4, rel=0.01)
    assert study.losses[0].name == "creative"
    assert {gain.key_id for gain in study.applications} == {"anonymous", "other"}
    assert ("switch_off", "creative") in {(advice.kind, advice.task) for advice in study.advice}
    assert study.waste[0].wasted_accelerator_s == pytest.approx(study.waste[0].wasted_s / 4, rel=0.01)


async def test_the_query_that_is_shown_gives_the_figures_that_are_shown(both):
    now, databases = both
    for database in databases:
        study = (await OpsReader(database, clock=lambda: now).report(7200, study=True)).study
        (shown,) = [query.sql for query in study.queries if query.id == "sums"]
        fresh, packed = shown.split(";\n")
        async with database._read() as connection:
            rows = (await connection.execute(text(fresh.replace(":", r"\:")))).fetchall()
            assert (await connection.execute(text(packed.replace(":", r"\:")))).fetchall() == []
            code = "SELECT id FROM cells WHERE task = 'code'"
            cells = set((await connection.execute(text(code))).scalars())
        routed = [sums_of(row[4:]) for row in rows if row[1] in cells and row[3] > 0]
        code = next(gain for gain in study.tasks if gain.name == "code")
        assert sum(sums.measured for sums in routed) == code.requests == 320
        assert sum(sums.decode_us for sums in routed) / 1e6 == pytest.approx(code.time.actual_s)


async def test_every_form_has_the_figures_and_leads_to_their_queries(both):
    now, (database, _) = both
    report = await OpsReader(database, clock=lambda: now).report(7200, study=True)
    gain = f"{report.study.tasks[0].time.gain:.2f}"
    page = render.to_page(report, standalone=True)
    assert page.count("<svg") >= 2
    assert f"{gain}×" in page
    for name in ("sums", "tails", "switches"):
        assert f'id="query-{name}"' in page
        assert f'href="#query-{name}"' in page
    assert "<script" not in page
    words = render.to_text(report)
    assert f"{gain}x" in words
    assert "randomised holdout" in words
    lines = render.to_csv(report).splitlines()
    assert len({line.count(",") for line in lines if '"' not in line}) == 1
    assert len(lines) == 1 + 2 + 1 + 2
    assert render.to_pdf(report).startswith(b"%PDF-")


def one_sided(now, truth, each=2000):
    """Requests of one task; of half of them a rule leaves the plain path only, so that no draw could hold them."""
    rng = random.Random(11)
    for at in range(each):
        drawn = at % 2 == 0
        held = drawn and rng.random() < 0.1
        arm, tokens = (DRAFTED if drawn and not held else PLAIN), rng.randint(10, 60)
        tpot = 0.02 * rng.lognormvariate(0, 0.2) / (truth if arm.k else 1)
        record = make_record(
            f"r{at}",
            arm=arm,
            tpot_s=tpot,
            completion_tokens=tokens + 1,
            at=now - rng.choice((300, 3 * 3600, 30 * 3600, 5 * 86400)) - 60 * rng.randrange(3),
        )
        state = "holdout" if held else "ok" if drawn else "policy"
        decision = msgspec.structs.replace(record.decision, state=state, arm=arm, holdout=0.2 if drawn else 0.0)
        yield msgspec.structs.replace(record, decision=decision)


async def test_requests_that_no_draw_could_hold_do_not_pull_the_gain_towards_one(database_url):
    """On minutes, packed hours and days; in the page as in the report."""
    now, truth = time.time(), 1.5
    database = Database(database_url)
    await database.migrate()
    records = list(one_sided(now, truth))
    for begin in range(0, len(records), 500):
        await database.insert_records(records[begin : begin + 500])
    for _ in range(2):
        report = await OpsReader(database, clock=lambda: now).report(6 * 86400, study=True)
        for gain in (report.study.total, *report.study.tasks, *report.study.applications):
            assert gain.time.low <= truth <= gain.time.high
            assert gain.time.high - gain.time.low < 0.3
        page = (await OpsReader(database, clock=lambda: now).report(6 * 86400)).tasks[0]
        task = report.study.tasks[0]
        assert (page.holdout_gain, page.holdout_low, page.held) == (task.time.gain, task.time.low, task.holdout)
        await database.maintain(now=now)
    await database.aclose()


async def test_an_empty_window_is_a_report_too(tmp_path):
    database = Database(f"sqlite:///{tmp_path}/empty.db")
    await database.migrate()
    report = await OpsReader(database).report(3600, study=True)
    assert (report.study.total.time.gain, report.study.losses, report.study.waste) == (None, [], [])
    assert render.to_pdf(report).startswith(b"%PDF-")
    assert "Nowhere with 95 % confidence" in render.to_page(report, standalone=True)
    await database.aclose()
