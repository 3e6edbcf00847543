"""A database from before day rows told all of their hours: the migration adds them, and windows stay the same."""

from __future__ import annotations

import time

from sqlalchemy import text

from gateway.db import Database
from gateway.db.migrate import downgrade, upgrade
from tests.fixtures.records import make_record

NOW = time.time() // 86400 * 86400 + 45_000


async def test_hours_of_an_older_schema_are_added_to_their_days_and_taken_out_again(database_url):
    database = Database(database_url)
    await database.migrate()
    records = [make_record(f"r{i}", at=NOW - days * 86400, task="code") for i, days in enumerate((0.01, 5, 5.1, 9))]
    await database.insert_records(records)
    await database.maintain(now=NOW)
    before = await database.task_summary(NOW - 20 * 86400, NOW)
    assert before.activity[0].sums.requests == 4
    async with database._write() as connection:
        await connection.run_sync(downgrade, "0005")
        assert (await connection.execute(text("SELECT count(*) FROM activity_rollups WHERE span = 1440"))).scalar() == 0
    async with database._write() as connection:
        await connection.run_sync(upgrade)
    assert await database.task_summary(NOW - 20 * 86400, NOW) == before
    for days in (6, 9.5, 30):
        window = await database.task_summary(NOW - days * 86400, NOW)
        assert sum(part.sums.requests for part in window.activity) == {6: 3, 9.5: 4, 30: 4}[days]
        assert {row.metric: row.histogram.count for row in window.latency}["tpot"] == {6: 3, 9.5: 4, 30: 4}[days]
    await database.aclose()
