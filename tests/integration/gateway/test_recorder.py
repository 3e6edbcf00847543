"""The recorder with real stores: nothing lost, nothing counted twice, nobody kept waiting."""

import asyncio
import logging
import signal
import time

import pytest

from gateway.db import Database
from gateway.errors import StoreUnavailable
from gateway.recorder import Recorder
from gateway.stats import StatsStore
from tests.fixtures.records import make_record


async def answered(ask):
    """What a store says, asked again while a busy machine makes it miss its time."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await ask()
            except StoreUnavailable:
                await asyncio.sleep(0.05)


async def counted(store):
    """Requests that Redis has counted."""
    now = int(time.time() // 60)
    return sum(counters.get("n", 0) for _, _, counters in await answered(lambda: store.read(now - 30)))


async def stored(database):
    """Requests in the roll-ups, and rows behind p99."""
    summary = await answered(lambda: database.window(0))
    requests = sum(group.sums.requests for group in summary.activity)
    assert sum(row.histogram.count for row in summary.latency if row.metric == "tpot") == requests
    return requests


async def at_least(number, value):
    return await value >= number


async def holds(value):
    return value


async def until(condition):
    """Wait until an asynchronous condition holds."""
    async with asyncio.timeout(90):
        while not await condition():  # noqa: ASYNC110 — the stores have no events to wait for
            await asyncio.sleep(0.02)


async def settled(recorder):
    """Wait until every store has everything."""
    async with asyncio.timeout(90):
        while True:
            state = recorder.state()
            if state.queued == 0 and all(sink.pending == 0 for sink in state.sinks):
                return state
            await asyncio.sleep(0.02)


@pytest.fixture
async def database(tmp_path):
    opened = Database(f"sqlite:///{tmp_path / 'breakeven.db'}", timeout_s=20.0)
    await opened.migrate()
    yield opened
    await opened.aclose()


@pytest.fixture
async def store(valkey_server):
    opened = StatsStore(valkey_server.url, timeout_s=0.2)
    yield opened
    await opened.aclose()


@pytest.fixture
async def recorder_of(tmp_path, store, database):
    made = []

    def make(**options):
        made.append(
            Recorder(tmp_path / "spool", **{"store": store, "database": database, "interval_s": 0.02} | options)
        )
        return made[-1]

    yield make
    for recorder in made:
        await recorder.aclose(patience_s=0.1)


async def test_records_reach_both_stores_and_leave_no_files(recorder_of, store, database, tmp_path):
    recorder = recorder_of()
    await recorder.start()
    for i in range(1200):
        recorder.submit(make_record(f"r{i}"))
    state = await settled(recorder)
    assert (state.submitted, state.dropped) == (1200, 0)
    assert [(sink.name, sink.ok, sink.delivered) for sink in state.sinks] == [
        ("redis", True, 1200),
        ("database", True, 1200),
    ]
    await recorder.aclose()
    assert await counted(store) == 1200
    assert await stored(database) == 1200
    assert list((tmp_path / "spool").iterdir()) == []


async def test_a_killed_store_gets_everything_when_it_is_back(recorder_of, store, database, valkey_server):
    recorder = recorder_of()
    await recorder.start()
    recorder.submit(make_record("before"))
    await settled(recorder)
    valkey_server.kill()
    for i in range(30):
        recorder.submit(make_record(f"r{i}"))
        await asyncio.sleep(0.005)
    await until(lambda: at_least(31, stored(database)))
    await until(lambda: holds(not recorder.state().sinks[0].ok))
    assert recorder.state().sinks[0].pending == 30
    assert recorder.state().spooled_bytes > 0
    valkey_server.start()
    await settled(recorder)
    assert await counted(store) == 31
    assert await stored(database) == 31
    await recorder.aclose()


async def test_a_frozen_store_delays_nobody_and_counts_each_record_once(recorder_of, store, database, valkey_server):
    recorder = recorder_of()
    await recorder.start()
    recorder.submit(make_record("before"))  # and so the server knows the script
    await settled(recorder)
    valkey_server.signal(signal.SIGSTOP)
    taken = []
    for i in range(100):
        began = time.perf_counter()
        recorder.submit(make_record(f"r{i}"))
        taken.append(time.perf_counter() - began)
        await asyncio.sleep(0.005)  # batches time out and are sent again: the server will see both when it wakes
    assert sorted(taken)[50] < store._client.connection_pool.connection_kwargs["socket_timeout"]
    valkey_server.signal(signal.SIGCONT)
    await settled(recorder)
    assert await counted(store) == 101
    assert await stored(database) == 101
    await recorder.aclose()


async def test_what_a_dead_process_left_is_taken_over_once(recorder_of, store, database, valkey_server, tmp_path):
    first = recorder_of()
    await first.start()
    valkey_server.kill()
    for i in range(20):
        first.submit(make_record(f"r{i}"))
    await until(lambda: at_least(20, stored(database)))
    second = recorder_of()  # the first one lives: its journal is not touched
    await second.start()
    assert second.state().sinks[0].pending == 0
    await second.aclose()
    await first.aclose(patience_s=0.2)
    assert any((tmp_path / "spool").iterdir())
    valkey_server.start()
    third = recorder_of()
    await third.start()
    assert third.state().sinks[0].pending == 20
    await settled(third)
    await third.aclose()
    assert await counted(store) == 20
    assert await stored(database) == 20
    assert list((tmp_path / "spool").iterdir()) == []


async def test_a_torn_last_frame_costs_only_itself(recorder_of, store, database, valkey_server, tmp_path):
    valkey_server.kill()
    first = recorder_of(batch_limit=1)
    await first.start()
    for i in range(5):
        first.submit(make_record(f"r{i}"))
    await until(lambda: at_least(5, stored(database)))
    await first.aclose(patience_s=0.2)
    segment = next((tmp_path / "spool").glob("*/*.log"))
    segment.write_bytes(segment.read_bytes()[:-7])
    valkey_server.start()
    second = recorder_of()
    await second.start()
    await settled(second)
    await second.aclose()
    assert await counted(store) == 4


async def test_a_database_that_comes_late_gets_everything(tmp_path, recorder_of, store):
    late = Database(f"sqlite:///{tmp_path / 'late.db'}")
    recorder = recorder_of(database=late)
    await recorder.start()
    for i in range(10):
        recorder.submit(make_record(f"r{i}"))
    await until(lambda: at_least(10, counted(store)))
    await until(lambda: holds(not recorder.state().sinks[1].ok))
    await late.migrate()
    await settled(recorder)
    assert await stored(late) == 10
    await recorder.aclose()
    await late.aclose()


async def test_one_impossible_record_is_refused_alone(recorder_of, store, database, caplog):
    caplog.set_level(logging.CRITICAL)
    recorder = recorder_of()
    await recorder.start()
    recorder.submit(make_record("good"))
    recorder.submit(make_record("unencodable", signals={"x": object()}))
    recorder.submit(make_record("unstorable", prompt_tokens=2**70))
    recorder.submit(make_record("good too"))
    state = await settled(recorder)
    assert await stored(database) == 2
    assert state.dropped + state.sinks[1].refused == 2
    await recorder.aclose()


async def test_a_full_queue_drops_and_counts(recorder_of):
    recorder = recorder_of(queue_limit=10)
    for i in range(15):
        recorder.submit(make_record(f"r{i}"))
    assert (recorder.state().submitted, recorder.state().queued, recorder.state().dropped) == (15, 10, 5)


async def test_a_full_spool_loses_the_oldest_of_the_store_that_is_behind(recorder_of, store, database, valkey_server):
    valkey_server.kill()
    recorder = recorder_of(batch_limit=10, spool_limit_bytes=150_000)
    recorder._deliveries[1].sink.pace_s = 0.0
    await recorder.start()
    for i in range(400):
        recorder.submit(make_record(f"r{i}"))
        if i % 40 == 39:  # the database keeps up
            await until(lambda: holds(recorder.state().queued == 0 and recorder.state().sinks[1].pending == 0))
    assert recorder.state().spooled_bytes <= 200_000
    assert 0 < recorder.state().sinks[0].lost < 400
    valkey_server.start()
    state = await settled(recorder)
    assert await counted(store) == 400 - state.sinks[0].lost
    assert await stored(database) == 400
    assert state.sinks[1].lost == 0


async def test_an_unwritable_spool_still_reaches_the_stores(tmp_path, recorder_of, store, database):
    (tmp_path / "spool").write_text("a file where the folder should be")
    recorder = recorder_of()
    await recorder.start()
    recorder.submit(make_record("r"))
    await until(lambda: at_least(1, stored(database)))
    await until(lambda: at_least(1, counted(store)))
    await recorder.aclose()
