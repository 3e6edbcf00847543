"""The database on SQLite and PostgreSQL: the same calls, the same answers."""

import asyncio
import time
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from sqlalchemy import text

from gateway.db import ActivitySums, Database, Switch, new_key
from gateway.db.migrate import differences, downgrade
from gateway.errors import SettingsError, StoreRefused, StoreUnavailable
from gateway.histogram import LogHistogram
from gateway.metrics import Metrics
from gateway.ops.collect import OpsReader
from gateway.types import Arm
from tests.fixtures.records import make_record
from tests.repo.tree import ROOT

PLAIN = Arm("engine")


@pytest.fixture
async def database(database_url):
    opened = Database(database_url)
    await opened.migrate()
    yield opened
    await opened.aclose()


async def test_migrations_build_exactly_the_models_and_can_be_taken_back(database):
    assert await database.pending_migrations() == []
    await database.migrate()
    async with database._write() as connection:
        assert await connection.run_sync(differences) == []
        await connection.run_sync(downgrade, "base")
    revisions = sorted(path.stem[-4:] for path in (ROOT / "migrations" / "versions").glob("*_0*.py"))
    assert await database.pending_migrations() == revisions
    await database.migrate()
    assert await database.pending_migrations() == []


async def test_several_processes_may_migrate_at_once(database_url):
    databases = [Database(database_url) for _ in range(3)]
    await asyncio.gather(*(database.migrate() for database in databases))
    assert await databases[0].pending_migrations() == []
    for database in databases:
        await database.aclose()


async def test_a_schema_of_a_newer_version_is_said(database):
    async with database._write() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(StoreUnavailable, match=r"9999.*newer"):
        await database.migrate()


async def test_a_database_without_schema_is_unavailable(database_url):
    database = Database(database_url)
    await database.ping()
    with pytest.raises(StoreUnavailable, match=r"requests|cells"):
        await database.insert_records([make_record("r1")])
    await database.aclose()


async def test_records_are_stored_once_and_summed(database):
    now = time.time()
    records = [make_record("r1", at=now), make_record("r2", at=now), make_record("r3", at=now, arm=PLAIN, tpot_s=0.02)]
    assert await database.insert_records(records, writer="w1") == 3
    assert await database.insert_records([*records, make_record("r4", at=now)], writer="w1") == 1
    assert await database.insert_records(records, writer="w2") == 0
    summary = await database.window(now - 60)
    sums = {group.arm: group.sums for group in summary.activity}
    speculative = sums[Arm("engine", "ngram", 4)]
    assert speculative == ActivitySums(
        requests=3, prompt_tokens=120, completion_tokens=42, overhead_us=1500, ttft_us=150_000, e2e_us=540_000,
        measured=3, decode_tokens=39, decode_us=370_500, tokens_tokens=507, tokens_time=3 * 13 * 1235,
        time_time=3 * 1235 * 1235, rounds=12, drafted=48, accepted=21, zero_rounds=3, undrafted=6, draft_us=3000,
        verify_us=240_000, plain_us=120_000, expected_plain_us=3 * 260_000, expected_round_plain_us=3 * 80_000,
            accelerator_tokens=39, accelerator_us=363_000, tokens_accelerator=3 * 13 * 1210,
            accelerator_accelerator=3 * 1210 * 1210,
        accepted_histogram=[3, 3, 3, 0, 3] + [0] * 12,
    )  # fmt: skip
    assert sums[PLAIN].requests == 1
    latency = {(row.arm, row.metric): row.histogram for row in summary.latency}
    assert latency[PLAIN, "tpot"] == LogHistogram.of([0.02])
    assert latency[Arm("engine", "ngram", 4), "itl"] == LogHistogram.of([0.02, 0.021, 0.025, 0.024, 0.02] * 3)


async def test_a_row_holds_the_record(database):
    record = make_record("r1", signals={"text": "naïve \0 \ud800"}, error_code=None)
    await database.insert_records([record])
    async with database._read() as connection:
        row = (await connection.execute(text("SELECT * FROM requests"))).mappings().one()
    assert (row["request_id"], row["backend"], row["method"], row["k"]) == ("r1", "engine", "ngram", 4)
    assert (row["rounds"], row["accepted"], row["zero_rounds"], row["tpot_s"]) == (4, 7, 1, 0.0095)
    signals = row["signals"] if isinstance(row["signals"], dict) else msgspec.json.decode(row["signals"])
    assert signals == {"text": "naïve \ufffd ?"}


async def test_failed_screened_and_aborted_requests_are_counted_apart(database):
    now = time.time()
    await database.insert_records([
        make_record("r1", at=now, status=503, error_code="unavailable", spec=None, completion_tokens=None, tpot_s=None),
        make_record("r2", at=now, loop=True),
        make_record("r3", at=now, fallback=True),
    ])  # fmt: skip
    summary = await database.window(now - 60)
    total = ActivitySums()
    for group in summary.activity:
        total.add(group.sums)
    assert (total.requests, total.failed, total.loops, total.fallbacks, total.measured) == (3, 1, 1, 1, 0)
    assert summary.latency == []


async def test_the_error_budget_is_burnt_by_our_failures_and_not_by_clients(database):
    now = time.time()
    ours = [(500, "x"), (502, "backend_unreachable"), (503, "unavailable"), (200, "backend_unreachable")]
    theirs = [(400, "invalid"), (401, "key"), (404, "model_not_found"), (429, "rate_limit"), (499, "client_closed")]
    records = [
        make_record(f"r{at}", at=now, status=status, error_code=code)
        for at, (status, code) in enumerate([*ours, *theirs, (200, None)])
    ]
    await database.insert_records(records)
    (row,) = (await database.window(now - 60)).activity
    assert (row.sums.requests, row.sums.errors, row.sums.failed, row.sums.measured) == (10, 4, 8, 1)
    report = await OpsReader(database).report(600)
    assert (report.totals.errors, report.applications[0].errors) == (4, 4)
    metrics = Metrics(list)
    for record in records:
        metrics.submit(record)
    counted = [m for m in metrics.collect() if m.name == "breakeven_errors"]
    assert sum(sample.value for sample in counted[0].samples) == 4


async def test_concurrent_gateways_lose_nothing(database_url):
    databases = [Database(database_url, timeout_s=20.0) for _ in range(4)]
    await databases[0].migrate()
    now = time.time()

    async def write(number):
        for batch in range(5):
            records = [make_record(f"g{number}-{batch}-{i}", at=now, key_id=f"k{i % 3}") for i in range(10)]
            await databases[number].insert_records(records, writer=f"w{number}")

    await asyncio.gather(*(write(number) for number in range(4)))
    summary = await databases[0].window(now - 60)
    assert sum(group.sums.requests for group in summary.activity) == 200
    assert {row.metric: row.histogram.count for row in summary.latency} == {"tpot": 200, "ttft": 200, "itl": 1000}
    for database in databases:
        await database.aclose()


async def test_history_is_merged_by_cell_and_hour(database):
    hour = time.time() // 3600 * 3600 - 7200
    at = [hour + 5, hour + 100, hour + 3605]
    await database.insert_records([make_record(f"r{i}", at=moment, tpot_s=0.01) for i, moment in enumerate(at)])
    cells = await database.p99_history(hour, metrics=("tpot",))
    assert [(cell.minute * 60, cell.minutes, cell.histogram.count) for cell in cells] == [
        (hour, 60, 2),
        (hour + 3600, 60, 1),
    ]
    assert cells[0].key.task == "code"


async def test_maintenance_deletes_raw_rows_and_keeps_the_sums(database):
    now = time.time() // 86400 * 86400 + 45000
    ages = [1, 3 * 1440, 3 * 1440 + 1, 40 * 1440, 100 * 1440, 100 * 1440 + 90]  # minutes
    records = [make_record(f"r{i}", at=now - age * 60) for i, age in enumerate(ages)]
    await database.insert_records(records)
    before = await database.window(0, now)
    assert await database.maintain(now=now) == 3
    after = await database.window(0, now)
    assert (after.activity, after.latency) == (before.activity, before.latency)
    assert await spans(database) == {60: 2, 1440: 3, 10080: 3}
    late = [make_record(f"late{i}", at=now - age * 60) for i, age in enumerate(ages)]
    await database.insert_records(late)  # a spool that came back after days
    await database.maintain(now=now)
    assert await spans(database) == {60: 2, 1440: 3, 10080: 3}
    total = await database.window(0, now)
    assert sum(group.sums.requests for group in total.activity) == 12
    cells = {row.key.temperature: row.sums.requests for row in total.cells}
    assert cells == {"0": 2, "*": 10}  # minutes tell the temperature, hours and days do not
    assert {row.metric: row.histogram.count for row in total.latency}["tpot"] == 12


async def spans(database):
    async with database._read() as connection:
        rows = await connection.execute(text("SELECT span, count(*) FROM activity_packed GROUP BY span"))
        return dict(rows.all())


async def test_keys_are_stored_hashed_and_revoked(database):
    created = datetime.now(UTC)
    app, token = new_key("app", "web", created_at=created, requests_per_minute=60)
    operator, other = new_key("operator", "ops", created_at=created + timedelta(seconds=1))
    await database.create_key(app)
    await database.create_key(operator)
    assert await database.load_keys() == [app, operator]
    assert app.accepts(token)
    assert not app.accepts(other)
    assert not app.accepts(token[:-1] + ("A" if token[-1] != "A" else "B"))
    assert await database.revoke_key(app.key_id)
    assert not await database.revoke_key(app.key_id)
    assert not await database.revoke_key("nobody")
    assert [key.key_id for key in await database.load_keys()] == [operator.key_id]
    listed = await database.list_keys()
    assert listed[0].revoked_at is not None
    assert not listed[0].accepts(token)
    with pytest.raises(StoreRefused):
        await database.create_key(operator)
    async with database._read() as connection:
        dump = str((await connection.execute(text("SELECT * FROM api_keys"))).fetchall())
        actions = (await connection.execute(text("SELECT action FROM audit_log ORDER BY id"))).scalars().all()
    assert token.rsplit("-", 1)[1] not in dump
    assert actions == ["key.create", "key.create", "key.revoke"]


async def test_switch_log_keeps_the_numbers_and_each_change_once(database):
    at = datetime.now(UTC)
    first = Switch(at, "engine", "code", "1", "engine/plain", "engine/ngram-k4", "why", "abc", {"a": 2.9, "z": None})
    assert await database.log_switch(first)
    assert not await database.log_switch(first)
    back = msgspec.structs.replace(first, old_arm="engine/ngram-k4", new_arm="engine/plain")
    assert await database.log_switch(back)
    assert await database.switches(time.time() - 60) == [back, first]


async def test_policy_versions_and_activations(database):
    await database.store_policy("h1", "default", "text 1", actor="start")
    await database.store_policy("h1", "default", "text 1", actor="start")
    await database.store_policy("h2", "default", "text 2", actor="reload")
    await database.store_policy("h1", "default", "text 1", actor="operator")
    assert [(policy.hash, policy.text, policy.actor) for policy in await database.policies()] == [
        ("h1", "text 1", "operator"),
        ("h2", "text 2", "reload"),
        ("h1", "text 1", "start"),
    ]


@pytest.mark.parametrize("url", ["mysql://x/y", "not a url", "sqlite"])
def test_a_bad_url_is_a_settings_error(url):
    with pytest.raises(SettingsError, match="BREAKEVEN_DATABASE_URL"):
        Database(url)
