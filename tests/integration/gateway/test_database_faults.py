"""PostgreSQL frozen, killed and back: calls end in time, records wait and are counted once."""

import asyncio
import signal

import pytest

from gateway.db import Database
from gateway.errors import StoreUnavailable
from gateway.recorder import Recorder
from tests.fixtures.records import make_record


async def make(url):
    """Make the schema, which may take longer than a test's own patience lasts."""
    patient = Database(url, timeout_s=20.0)
    await patient.migrate()
    await patient.aclose()


async def requests_in(url):
    patient = Database(url, timeout_s=20.0)
    summary = await patient.window(0)
    await patient.aclose()
    return sum(group.sums.requests for group in summary.activity)


async def until_delivered(recorder):
    async with asyncio.timeout(90):
        while recorder.state().queued or any(sink.pending for sink in recorder.state().sinks):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


@pytest.mark.slow
async def test_a_frozen_and_a_killed_postgresql_lose_nothing(postgres_server, tmp_path):
    await make(postgres_server.url)
    database = Database(postgres_server.url, timeout_s=1.0)
    recorder = Recorder(tmp_path / "spool", database=database, interval_s=0.02)
    await recorder.start()
    recorder.submit(make_record("before"))
    await until_delivered(recorder)

    postgres_server.signal_all(signal.SIGSTOP)
    for i in range(20):
        recorder.submit(make_record(f"frozen{i}"))
    async with asyncio.timeout(60):  # its limit is one second; only a hang would take so long
        with pytest.raises(StoreUnavailable):
            await database.ping()
    async with asyncio.timeout(60):
        while recorder.state().sinks[0].pending != 20:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    postgres_server.signal_all(signal.SIGCONT)
    await until_delivered(recorder)
    assert await requests_in(postgres_server.url) == 21

    postgres_server.kill()
    for i in range(20):
        recorder.submit(make_record(f"killed{i}"))
    async with asyncio.timeout(60):
        while recorder.state().sinks[0].ok:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    postgres_server.start()
    await until_delivered(recorder)
    assert await requests_in(postgres_server.url) == 41
    await recorder.aclose()
    await database.aclose()


async def test_closing_while_postgresql_is_frozen_ends_in_time(postgres_server, tmp_path):
    await make(postgres_server.url)
    database = Database(postgres_server.url, timeout_s=0.5)
    recorder = Recorder(tmp_path / "spool", database=database, interval_s=0.02)
    await recorder.start()
    postgres_server.signal_all(signal.SIGSTOP)
    recorder.submit(make_record("r"))
    async with asyncio.timeout(60):
        while recorder.state().queued:  # noqa: ASYNC110 — then its delivery has begun
            await asyncio.sleep(0.01)
        await recorder.aclose(patience_s=0.5)
        await database.aclose()
    postgres_server.signal_all(signal.SIGCONT)
    assert any((tmp_path / "spool").iterdir())


async def test_a_locked_sqlite_file_is_waited_for_and_then_given_up(tmp_path):
    url = f"sqlite:///{tmp_path / 'b.db'}"
    await make(url)
    database, other = Database(url, timeout_s=20.0), Database(url, timeout_s=0.2)
    async with database._write() as connection:
        other._timeout_s = 20.0  # SQLite's own patience is what ends first, however slow the machine is
        with pytest.raises(StoreUnavailable, match="locked"):
            await other.insert_records([make_record("r")])
        assert await requests_in(url) == 0  # readers are not blocked
        assert connection.in_transaction()
    assert await other.insert_records([make_record("r")]) == 1
    await other.aclose()
    await database.aclose()
