"""Reports from a real database, alone and beside a running gateway's live statistics."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime

import msgspec
import pytest

from engine.messages import CostCell, CostTable
from gateway.db import AuditResult, Database, Switch, new_key
from gateway.db.types import utc
from gateway.ops import render
from gateway.ops.collect import OpsReader
from gateway.ops.live import LiveReports
from gateway.ops.render import to_live
from gateway.routing import Bucket, build_snapshot, empty_snapshot, observe, summarize
from gateway.types import Arm, BackendState
from tests.fixtures.records import SPEC, make_record

PLAIN = Arm("engine")


@pytest.fixture
async def database(database_url):
    opened = Database(database_url)
    await opened.migrate()
    yield opened
    await opened.aclose()


def state(**changes):
    arms = (PLAIN, Arm("engine", "ngram", 4))
    fields = {"name": "engine", "kind": "engine", "healthy": True, "arms": arms, "model": "m", "max_model_len": 2048}
    fields |= {"epoch": "e1", "has_tool_template": False, "per_request_stats": True, "per_request_switch": True}
    return BackendState(**(fields | {"adaptive": True, "running": 0} | changes))


async def test_figures_of_what_was_recorded(database):
    records = [make_record(f"s{i}") for i in range(10)]
    records += [make_record(f"p{i}", arm=PLAIN, tpot_s=0.02) for i in range(4)]
    records += [make_record("c1", task="chat", arm=PLAIN), make_record("bad", status=500, error_code="x", spec=None)]
    await database.insert_records(records)
    report = await OpsReader(database).report(3600)
    code, chat = report.tasks
    assert (code.task, code.requests, code.requests_plain, code.requests_spec, code.errors) == ("code", 15, 4, 11, 1)
    assert code.a == pytest.approx(1 + 7 / 4)
    assert code.z == pytest.approx(1 / 4)
    assert code.alpha == pytest.approx(0.001 / 0.08)
    assert code.beta == pytest.approx(0.08 / 0.08 - 1)
    assert code.gain == pytest.approx(13 * 0.02 / 0.121)
    assert code.gain_low <= code.gain <= code.gain_high
    assert code.tpot_p50_plain_ms == pytest.approx(20, rel=0.01)
    assert code.tpot_p50_spec_ms == pytest.approx(9.5, rel=0.01)
    assert (chat.task, chat.requests, chat.a) == ("chat", 1, None)
    assert report.totals.requests == 16
    assert [(p.path, p.requests, p.errors) for p in report.paths] == [("plain", 5, 0), ("speculative", 11, 1)]
    assert report.paths[1].itl_p50_ms == pytest.approx(21, rel=0.02)
    assert report.paths[0].overhead_ms == pytest.approx(0.5)
    assert report.health[0].ok


async def test_only_the_window_counts(database):
    await database.insert_records([make_record("new"), make_record("old", at=time.time() - 7200)])
    assert (await OpsReader(database).report(3600)).totals.requests == 1
    assert (await OpsReader(database).report(3 * 3600)).totals.requests == 2


async def test_without_a_gateway_the_switch_log_says_what_is_in_force(database):
    await database.insert_records([make_record("r1")])
    at = utc(time.time() - 90_000)
    for arm in ("engine/ngram-k4", "engine/plain"):
        await database.log_switch(Switch(at, "engine", "code", "load 1", "", arm, f"because of {arm}", "abc", {}))
    task = (await OpsReader(database).report(3600)).tasks[0]
    assert (task.path, task.arm, task.reason) == ("plain", "engine/plain", "because of engine/plain")
    longer = await OpsReader(database).report(2 * 86400)
    assert [switch.new_arm for switch in longer.switches] == ["engine/plain", "engine/ngram-k4"]
    assert longer.switches[0].at == pytest.approx(at.timestamp(), abs=1)


def live(*records):
    """A snapshot of what these records teach."""
    minute = int(time.time() // 60)
    buckets = [Bucket(minute, key, counters) for record in records for key, counters in observe(record)]
    cell = CostCell(batch=1, context=0, k=4, method="ngram", draft_s=0.0004, verify_s=0.022, plain_s=0.02, n=50)
    return build_snapshot(buckets, {"engine": CostTable([cell])}, now=time.time())


@pytest.mark.parametrize(("running", "load"), [(0, 1), (3, 4), (30, 4)])
async def test_a_running_gateway_shows_its_decision_at_the_present_load(database, running, load):
    records = [
        make_record(f"r{i}", spec=msgspec.structs.replace(SPEC, batch_mean=mean)) for i, mean in enumerate([1, 4])
    ]
    rare = make_record("rare", spec=msgspec.structs.replace(SPEC, batch_mean=1), temperature=0.8)
    await database.insert_records([*records, rare])
    await database.log_switch(Switch(utc(time.time()), "engine", "code", "", "", "engine/plain", "logged", "abc", {}))
    snapshot = live(*records, rare)
    reader = OpsReader(database, snapshot=lambda: snapshot, states=lambda: [state(running=running)])
    task = (await reader.report(60)).tasks[0]
    shown = next(row for row in summarize(snapshot, ()) if (row.load, row.temperature) == (load, "0"))
    assert (task.path, task.arm, task.state, task.reason) == (shown.path, shown.arm, shown.state, shown.reason)
    assert reader._live()["code"] == shown


async def test_a_running_gateway_that_knows_nothing_yet_does_not_show_old_decisions(database):
    await database.insert_records([make_record("r1")])
    await database.log_switch(Switch(utc(time.time()), "engine", "code", "", "", "engine/plain", "logged", "abc", {}))
    task = (await OpsReader(database, snapshot=empty_snapshot).report(60)).tasks[0]
    assert (task.path, task.reason) == ("", "")


async def test_usage_by_application_under_its_keys_name(database):
    key, _token = new_key("app", "website", created_at=datetime.now(UTC))
    await database.create_key(key)
    records = [make_record(f"w{i}", key_id=key.key_id) for i in range(3)]
    records += [make_record("p", key_id=key.key_id, arm=PLAIN), make_record("other", status=503, spec=None)]
    await database.insert_records(records)
    website, anonymous = (await OpsReader(database).report(60)).applications
    assert (website.name, website.requests, website.errors, website.completion_tokens) == ("website", 4, 0, 56)
    assert website.speculative_share == pytest.approx(0.75)
    assert (anonymous.name, anonymous.requests, anonymous.errors) == ("anonymous", 1, 1)


async def test_health_of_stores_and_backends(database):
    stores = {"redis": {"ok": False, "detail": "frozen for 3 s"}, "database": {"ok": True, "rows": 5}}
    reader = OpsReader(
        database,
        snapshot=empty_snapshot,
        states=lambda: [state(), state(name="pool", healthy=False, detail="connection refused", model="")],
        stores=lambda: stores,
        policy=lambda: {"hash": "9f31"},
    )
    report = await reader.report(60)
    health = {part.name: (part.ok, part.detail) for part in report.health}
    assert health["redis"] == (False, "frozen for 3 s")
    assert health["database"][0]
    assert health["backend engine"] == (True, "0 running, 0 waiting; plain, ngram-k4")
    assert health["backend pool"] == (False, "connection refused")
    assert (report.model, report.policy) == ("m", "9f31")


async def test_a_policy_that_cannot_be_used_is_on_the_page(database):
    said = {"hash": "9f31", "name": "p.yaml", "origin": "api", "rejected": None}
    stores = {"texts": {"ok": True, "detail": "", "kept": 3, "queued": 1, "dropped": 0}}
    reader = OpsReader(database, policy=lambda: said, stores=lambda: stores)
    health = {part.name: (part.ok, part.detail) for part in (await reader.report(60)).health}
    assert health["policy"] == (True, "p.yaml 9f31, from api")
    assert health["texts"] == (True, "3 kept, 1 in the queue")
    said["rejected"] = {
        "source": "p.yaml",
        "findings": ["p.yaml:2:1: error: no", "p.yaml:3:1: error: nor this"],
        "at": 1.0,
    }
    stores["texts"]["dropped"] = 2
    report = await reader.report(60)
    health = {part.name: (part.ok, part.detail) for part in report.health}
    why = "p.yaml refused: p.yaml:2:1: error: no (and 1 more); 9f31 stays in force"
    assert health["policy"] == (False, why)
    assert health["texts"] == (False, "3 kept, 1 in the queue, 2 LOST")
    assert "p.yaml refused: p.yaml:2:1: error: no" in to_live(report)


async def test_a_database_that_is_away_leaves_the_live_statistics(tmp_path):
    (tmp_path / "broken.db").write_bytes(b"no database " * 1000)
    database = Database(f"sqlite:///{tmp_path}/broken.db", timeout_s=0.5)
    report = await OpsReader(database, snapshot=empty_snapshot, stores=lambda: {"database": {"ok": True}}).report(60)
    await database.aclose()
    assert report.tasks == []
    assert [(part.name, part.ok) for part in report.health] == [("database", False)]
    assert "live statistics only" in report.source


async def test_a_frozen_database_does_not_freeze_the_page(tmp_path):
    class Frozen(Database):
        async def window(self, *_args, **_more):
            await asyncio.sleep(3600)

    database = Frozen(f"sqlite:///{tmp_path}/frozen.db")
    records = [make_record(f"r{i}") for i in range(9)]
    snapshot = live(*records)
    report = await OpsReader(database, snapshot=lambda: snapshot, patience_s=0.05).report(60)
    await database.aclose()
    assert [(part.name, part.ok) for part in report.health] == [("database", False)]
    assert "did not answer within" in report.source
    assert [(task.task, task.requests) for task in report.tasks] == [("code", 9)]
    assert report.tasks[0].a == pytest.approx(2.75, abs=0.01)


class Clock:
    """A clock that a test moves."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


async def test_viewers_share_a_report_and_hear_of_changes_only(database):
    clock = Clock()
    live_reports = LiveReports(OpsReader(database), every_s=0.0, clock=clock)
    events = live_reports.events(3600.0)
    assert (await anext(events)).startswith(b"retry:")
    first = await anext(events)
    assert b"event: report" in first
    assert all(line.startswith((b"id:", b"event:", b"data:")) for line in first.split(b"\n") if line)
    assert b"event: same" in await anext(events)
    assert await live_reports.report(3600.0) is await live_reports.report(3600.0)
    await database.insert_records([make_record("r1")])
    assert b"event: same" in await anext(events)
    clock.now += 1.1
    changed = await anext(events)
    assert b"event: report" in changed
    assert b'data-task="code"' in changed
    await events.aclose()


async def test_a_report_that_takes_long_is_made_seldom(database):
    clock, made = Clock(), []

    class Slow(OpsReader):
        async def report(self, since_s):
            clock.now += since_s / 3600  # a second an hour
            made.append(since_s)
            return await super().report(since_s)

    live_reports = LiveReports(Slow(database), clock=clock)
    for window, fresh in ((18.0, 1.0), (360.0, 12.0), (86400.0, 60.0)):
        made.clear()
        await live_reports.report(window)
        clock.now += fresh - 0.1
        await live_reports.report(window)
        assert made == [window]
        clock.now += 0.2
        await live_reports.report(window)
        assert made == [window, window]


async def test_events_end_with_the_server(database):
    ended = False
    events = LiveReports(OpsReader(database), every_s=0.0).events(3600.0, lambda: ended)
    for _ in range(3):
        await anext(events)
    ended = True
    with pytest.raises(StopAsyncIteration):
        await anext(events)


async def test_losslessness_audits_are_summed_by_arm_and_those_that_parted_are_named(database):
    """Sums of two writers add up in one row; both databases keep the largest gap."""
    usual = {"at": time.time(), "task": "code", "rule": "r", "policy": "p", "plain_arm": "engine/plain"}
    usual |= {"spec_arm": "engine/ngram-k4", "served": "plain"}
    equal = [AuditResult(request_id=f"e{i}", outcome="equal", **usual) for i in range(3)]
    near = AuditResult(request_id="n", outcome="near_tie", field="content", position=7, token=2, gap=0.01, **usual)
    wide = AuditResult(request_id="w", outcome="different", field="content", position=0, token=0, gap=3.5, **usual)
    await database.insert_audits([*equal, near])
    await database.insert_audits([wide, AuditResult(request_id="f", outcome="failed", **usual)])
    report = await OpsReader(database).report(3600)
    (sums,) = report.audits
    assert (sums.arm, sums.audited, sums.equal, sums.near_tie, sums.different) == ("engine/ngram-k4", 5, 3, 1, 1)
    assert (sums.failed, sums.largest_gap) == (1, 3.5)
    assert [(one.request_id, one.position, one.gap) for one in report.parted] == [("w", 0, 3.5), ("n", 7, 0.01)]
    said = "5 answers compared with plain, 3 equal, 1 parted at a near tie, 1 different"
    assert f"audit of engine/ngram-k4: {said}" in render.to_text(report)
    page = render.to_live(report)
    assert 'data-audit="engine/ngram-k4"' in page
    assert "different <span>at content, character 0, gap 3.500; request w" in page
