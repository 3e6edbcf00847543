"""A database from before day rows told all of their hours: the migration adds them, and windows stay the same."""

from __future__ import annotations

import asyncio
import time

import msgspec
import pytest
from sqlalchemy import text

from gateway.db import Database, packing, queries
from gateway.db.migrate import downgrade, upgrade
from gateway.db.subjects import ERASED, Subject
from tests.fixtures.records import make_record

NOW = time.time() // 86400 * 86400 + 45_000


def seen(window):
    """All of a window but what hours no longer tell."""
    return window.activity, window.latency, window.tails


async def test_what_comes_late_into_a_told_minute_is_counted_once_in_every_window(database_url):
    database, now = Database(database_url), time.time()
    await database.migrate()
    for at in range(4):
        ages = (600, 3 * 3600, 20 * 3600, 3 * 86400)
        await database.insert_records([make_record(f"r{at}-{age}", at=now - age, tpot_s=0.01) for age in ages])
        await database.maintain(now=now)
    for window, expected in (
        (900, 4),
        (2 * 3600, 4),
        (4 * 3600, 8),
        (30 * 3600, 12),
        (5 * 86400, 16),
        (40 * 86400, 16),
    ):
        summary = await database.window(now - window, now)
        assert sum(part.sums.requests for part in summary.activity) == expected, window
        assert {row.metric: row.histogram.count for row in summary.latency}["tpot"] == expected, window
        points = await database.task_series(now - window, 60, ("requests",))
        assert sum(point.sums["requests"] for point in points) == expected, window
    async with database._read() as connection:
        fresh = "SELECT count(*) FROM activity_minutes WHERE minute < :now"
        left = (await connection.execute(text(fresh), {"now": int(now // 60) - 75})).scalar()
    assert left == 0
    guard = await database.p99_history(now - 86400, metrics=("tpot",))
    assert sum(cell.histogram.count for cell in guard) == 12
    await database.aclose()


async def test_a_reader_sees_minutes_before_or_after_they_are_told_never_both(database_url):
    database, now = Database(database_url), time.time()
    await database.migrate()
    await database.insert_records([make_record("r", at=now - 3 * 3600)])
    first, last = int(now // 60) - 300, int(now // 60)
    async with database._read() as connection:
        fresh = (await connection.execute(queries.fresh_sums(first, last, 1440))).fetchall()
        await database.maintain(now=now)
        packed = (await connection.execute(queries.packed_sums([(60, first, last), (1, first, last)]))).fetchall()
    assert (len(fresh), len(packed)) == (1, 0)
    assert [part.sums.requests for part in (await database.window(now - 18000, now)).activity] == [1]
    await database.aclose()


async def test_hours_of_an_older_schema_are_added_to_their_days_and_taken_out_again(database_url):
    database = Database(database_url)
    await database.migrate()
    records = [make_record(f"r{i}", at=NOW - days * 86400, task="code") for i, days in enumerate((0.01, 5, 5.1, 9))]
    await database.insert_records(records)
    await database.maintain(now=NOW)
    before = seen(await database.window(NOW - 20 * 86400, NOW))
    assert before[0][0].sums.requests == 4
    async with database._write() as connection:
        await connection.run_sync(downgrade, "0005")
        assert (await connection.execute(text("SELECT count(*) FROM activity_rollups WHERE span = 1440"))).scalar() == 0
    async with database._write() as connection:
        await connection.run_sync(upgrade)
    assert seen(await database.window(NOW - 20 * 86400, NOW)) == before
    for days in (6, 9.5, 30):
        window = await database.window(NOW - days * 86400, NOW)
        assert sum(part.sums.requests for part in window.activity) == {6: 3, 9.5: 4, 30: 4}[days]
        assert {row.metric: row.histogram.count for row in window.latency}["tpot"] == {6: 3, 9.5: 4, 30: 4}[days]
    await database.aclose()


async def test_shares_of_the_holdout_that_an_older_schema_does_not_tell_apart_are_added_up(database_url):
    database = Database(database_url)
    await database.migrate()
    for at, age in ((NOW - 5 * 86400, "old"), (NOW, "new")):
        made = [make_record(f"{age}-{share}", at=at) for share in (0.01, 0.05)]
        for record, share in zip(made, (0.01, 0.05), strict=True):
            record.decision = msgspec.structs.replace(record.decision, holdout=share)
        await database.insert_records(made)
    await database.maintain(now=NOW)
    async with database._write() as connection:
        await connection.run_sync(downgrade, "0006")
        sums = await connection.execute(text("SELECT span, sum(requests) FROM activity_rollups GROUP BY span"))
        assert dict(map(tuple, sums)) == {1: 2, 60: 2, 1440: 2}
        await connection.run_sync(upgrade)
    window = await database.window(NOW - 20 * 86400, NOW + 60)
    assert sum(part.sums.requests for part in window.activity) == 4
    await database.aclose()


@pytest.mark.parametrize("late", [{}, {"task": "math"}], ids=["known cell", "new cell"])
@pytest.mark.parametrize("step", ["add_sums", "add_histograms"])
async def test_what_comes_while_its_hour_is_packed_is_counted_once(database_url, monkeypatch, step, late):
    """A spool is replayed by one gateway while another one packs."""
    database, other = (Database(database_url, timeout_s=20.0) for _ in range(2))
    now = time.time()
    await database.migrate()
    at = now // 3600 * 3600 - 2 * 3600 + 30
    await database.insert_records([make_record("first", at=at, tpot_s=0.01)], writer="other")
    add, coming = getattr(packing, step), []

    async def slowly(*arguments):
        if not coming:
            record = make_record("late", at=at, tpot_s=0.01, **late)
            coming.append(asyncio.create_task(other.insert_records([record], writer="other")))
            await asyncio.sleep(0.5)
        await add(*arguments)

    monkeypatch.setattr(packing, step, slowly)
    await database.maintain(now=now)
    assert await coming[0] == 1
    await database.maintain(now=now)
    window = await database.window(now - 86400, now)
    assert sum(part.sums.requests for part in window.activity) == 2
    assert sum(row.histogram.count for row in window.latency if row.metric == "tpot") == 2
    await database.aclose()
    await other.aclose()


async def test_erasing_an_application_in_use_loses_no_request_from_the_sums(database_url):
    database, other = (Database(database_url, timeout_s=20.0) for _ in range(2))
    now = time.time()
    await database.migrate()

    async def use():
        for number in range(60):
            await other.insert_records([make_record(f"r{number}", at=now, key_id="busy")])

    using = asyncio.create_task(use())
    while not using.done():
        await database.erase(Subject(key_id="busy"), actor="test")
    await using
    await database.erase(Subject(key_id="busy"), actor="test")
    window = await database.window(now - 3600, now + 60)
    assert {part.key_id: part.sums.requests for part in window.activity} == {ERASED: 60}
    async with asyncio.timeout(60):  # what is nobody's already stays as it is
        assert (await database.erase(Subject(key_id=ERASED), actor="test")).rollups == 0
    again = await database.window(now - 3600, now + 60)
    assert sum(part.sums.requests for part in again.activity) == 60
    await database.aclose()
    await other.aclose()
