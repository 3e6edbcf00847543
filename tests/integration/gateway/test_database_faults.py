"""PostgreSQL frozen, killed and back: calls end in time, records wait and are counted once."""

import asyncio
import signal
import time

import pytest

from gateway.db import Database
from gateway.errors import StoreUnavailable
from gateway.recorder import Recorder
from tests.fixtures.records import make_record


async def requests_in(database):
    summary = await database.window(0)
    return sum(group.sums.requests for group in summary.activity)


async def until_delivered(recorder):
    async with asyncio.timeout(40):
        while recorder.state().queued or any(sink.pending for sink in recorder.state().sinks):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


@pytest.mark.slow
async def test_a_frozen_and_a_killed_postgresql_lose_nothing(postgres_server, tmp_path):
    database = Database(postgres_server.url, timeout_s=1.0)
    await database.migrate()
    recorder = Recorder(tmp_path / "spool", database=database, interval_s=0.02)
    await recorder.start()
    recorder.submit(make_record("before"))
    await until_delivered(recorder)

    postgres_server.signal_all(signal.SIGSTOP)
    for i in range(20):
        recorder.submit(make_record(f"frozen{i}"))
    began = time.monotonic()
    with pytest.raises(StoreUnavailable):
        await database.ping()
    assert time.monotonic() - began < 15  # its limit is one second; only a hang would take so long
    assert recorder.state().sinks[0].pending == 20
    postgres_server.signal_all(signal.SIGCONT)
    await until_delivered(recorder)
    assert await requests_in(database) == 21

    postgres_server.kill()
    for i in range(20):
        recorder.submit(make_record(f"killed{i}"))
    async with asyncio.timeout(20):
        while recorder.state().sinks[0].ok:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    postgres_server.start()
    await until_delivered(recorder)
    assert await requests_in(database) == 41
    await recorder.aclose()
    await database.aclose()


async def test_closing_while_postgresql_is_frozen_ends_in_time(postgres_server, tmp_path):
    patient = Database(postgres_server.url)  # making the schema may take longer than a record has
    await patient.migrate()
    await patient.aclose()
    database = Database(postgres_server.url, timeout_s=0.5)
    recorder = Recorder(tmp_path / "spool", database=database, interval_s=0.02)
    await recorder.start()
    postgres_server.signal_all(signal.SIGSTOP)
    recorder.submit(make_record("r"))
    await asyncio.sleep(0.1)
    async with asyncio.timeout(20):
        await recorder.aclose(patience_s=0.5)
        await database.aclose()
    postgres_server.signal_all(signal.SIGCONT)
    assert any((tmp_path / "spool").iterdir())


async def test_a_locked_sqlite_file_is_waited_for_and_then_given_up(tmp_path):
    database = Database(f"sqlite:///{tmp_path / 'b.db'}", timeout_s=0.2)
    await database.migrate()
    async with database._write() as connection:
        other = Database(f"sqlite:///{tmp_path / 'b.db'}", timeout_s=0.2)
        with pytest.raises(StoreUnavailable, match=r"locked|time"):
            await other.insert_records([make_record("r")])
        assert await requests_in(other) == 0  # readers are not blocked
        assert connection.in_transaction()
    assert await other.insert_records([make_record("r")]) == 1
    await other.aclose()
    await database.aclose()
