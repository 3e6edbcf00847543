"""Large batches delivered by the helper process: counted once, whatever becomes of that process."""

import os
import signal

import pytest

from gateway.courier import LARGE, Courier
from gateway.db import Database
from gateway.recorder import Recorder
from gateway.stats import StatsStore
from tests.fixtures.records import make_record
from tests.integration.gateway.test_recorder import counted, holds, settled, stored, until


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
async def parts(tmp_path, valkey_server):
    url = f"sqlite:///{tmp_path / 'breakeven.db'}"
    database, store = Database(url), StatsStore(valkey_server.url)
    await database.migrate()
    courier = Courier(redis=valkey_server.url, database=url)
    recorder = Recorder(tmp_path / "spool", store=store, database=database, courier=courier, interval_s=0.02)
    await recorder.start()
    yield recorder, courier, store, database
    await recorder.aclose()
    await courier.aclose()
    await store.aclose()
    await database.aclose()


async def test_large_batches_go_through_the_process_and_survive_its_death(parts):
    recorder, courier, store, database = parts
    recorder.submit(make_record("few"))
    await settled(recorder)
    assert courier.pid is None  # a handful is delivered from here

    for i in range(3 * LARGE):
        recorder.submit(make_record(f"a{i}"))
    state = await settled(recorder)
    pid = courier.pid
    assert pid is not None
    assert [sink.delivered for sink in state.sinks] == [1 + 3 * LARGE] * 2

    os.kill(pid, signal.SIGSTOP)  # it takes the next batches and says nothing
    for i in range(2 * LARGE):
        recorder.submit(make_record(f"b{i}"))
    await until(lambda: holds(recorder.state().queued == 0))
    os.kill(pid, signal.SIGKILL)
    state = await settled(recorder)
    assert [(sink.delivered, sink.ok) for sink in state.sinks] == [(1 + 5 * LARGE, True)] * 2
    assert await counted(store) == await stored(database) == 1 + 5 * LARGE


async def test_the_process_ends_with_its_input(tmp_path):
    url = f"sqlite:///{tmp_path / 'breakeven.db'}"
    courier = Courier(redis="", database=url)
    assert not courier.serves("redis")
    receipt = await courier.carry("database", "w", 1, [make_record("a")])
    assert receipt is not None
    assert "no such table" in receipt.error  # the store's own words come back
    pid = courier.pid
    assert pid is not None
    courier._process.stdin.close()  # what a killed gateway leaves behind

    async def gone():
        return not is_running(pid)

    await until(gone)
    await courier.aclose()
