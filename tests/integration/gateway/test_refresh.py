"""The refresher with real stores: what gateways wrote becomes the snapshot, a dead store makes it stale only."""

import asyncio
import signal
import time

import pytest

from engine.messages import CostCell, CostTable
from gateway.backends.base import Target
from gateway.backends.generic import GenericBackend
from gateway.backends.pool import ReplicaPool
from gateway.db import Database
from gateway.history import History
from gateway.policy import BreakEven, Rule
from gateway.recorder import Recorder
from gateway.refresh import Refresher
from gateway.routing import summarize, thresholds_of
from gateway.settings import Settings
from gateway.stats import MemoryStats, StatsStore
from gateway.stores import Stores
from gateway.types import Arm, BackendState
from tests.fixtures.records import make_record

ARM = Arm("engine", "ngram", 4)
PATIENT_S = 20.0
"""Of stores in tests that are not about stores which do not answer."""


class KnownBackend:
    """A backend whose costs and state are known, without a server behind it."""

    name = "engine"

    def state(self):
        return BackendState(
            name="engine", kind="engine", healthy=True, arms=(Arm("engine"), ARM), model="m", max_model_len=8192,
            epoch="e1", has_tool_template=True, per_request_stats=True, per_request_switch=True, adaptive=True,
            running=0,
        )  # fmt: skip

    def costs(self):
        cells = [CostCell(1, 300, 4, "ngram", draft_s=0.0001, verify_s=0.021, plain_s=0.02, n=50)]
        return CostTable(cells)

    def untold_load(self):
        return None

    def hear_load(self, others):
        raise AssertionError(others)


@pytest.fixture
async def database(tmp_path):
    opened = Database(f"sqlite:///{tmp_path / 'breakeven.db'}")
    await opened.migrate()
    yield opened
    await opened.aclose()


def refresher_of(store, database):
    return Refresher(backends=lambda: {"engine": KnownBackend()}, store=store, database=database, policy=lambda: "abc")


async def until(condition):
    """Wait for what comes in the background and is not announced."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def write(tmp_path, store, database, count):
    """Record requests on both paths, as several gateways would."""
    recorder = Recorder(tmp_path / "spool", store=store, database=database, interval_s=0.01)
    await recorder.start()
    for i in range(count):
        recorder.submit(make_record(f"s{i}", arm=ARM))
        recorder.submit(make_record(f"p{i}", arm=Arm("engine"), tpot_s=0.02))
    await recorder.aclose(patience_s=60.0)
    assert all(sink.pending == 0 for sink in recorder.state().sinks)


async def test_the_thresholds_that_a_policy_names_have_views_at_the_next_refresh(tmp_path, database):
    """Views come and go with the policy, grow stale with the rest, and are made for one that is only asked about."""
    store = MemoryStats()
    await write(tmp_path, store, database, 10)
    patient, forgetful = BreakEven(min_requests=100), BreakEven(half_life=60.0)
    named: list[BreakEven] = [patient]
    refresher = Refresher(
        backends=lambda: {"engine": KnownBackend()},
        store=store,
        thresholds=lambda: thresholds_of(Rule("r", break_even=one) for one in named),
    )
    await refresher.refresh()
    view = refresher.snapshot.under(patient)
    assert view is not refresher.snapshot
    assert view.nodes.keys() == refresher.snapshot.nodes.keys()
    assert view.book is refresher.snapshot.book
    named[:] = [forgetful]
    await refresher.refresh()
    assert refresher.snapshot.under(patient) is refresher.snapshot
    assert refresher.snapshot.under(forgetful).book is not refresher.snapshot.book
    asked = await refresher.seen_under(thresholds_of([Rule("r", break_even=patient)]))
    assert asked.under(patient) is not asked
    assert refresher.snapshot.under(patient) is refresher.snapshot
    refresher._read_at = time.monotonic() - 60
    refresher._mark_stale()
    assert refresher.snapshot.under(forgetful).stale


async def test_a_snapshot_holds_what_was_recorded_and_survives_a_restart(tmp_path, redis_url, database):
    store = StatsStore(redis_url, timeout_s=PATIENT_S)
    await write(tmp_path, store, database, 40)
    for _ in range(2):  # the second one is a gateway after a restart
        refresher = refresher_of(store, database)
        await refresher.start()
        await until(lambda: not refresher.snapshot.stale)  # noqa: B023
        await refresher.refresh_history()
        rows = [row for row in summarize(refresher.snapshot, ["code"]) if row.task == "code"]
        arms = {arm.arm: arm for arm in rows[0].arms}
        assert 36 <= arms[str(ARM)].requests <= 40  # each counts a little less with every second
        assert arms[str(ARM)].a == pytest.approx(1 + 7 / 4, rel=0.01)
        assert not refresher.snapshot.stale
        await refresher.refresh()
        await refresher._build(changed=True)
        metrics = {(cell.key.method, cell.metric): cell.histogram.count for cell in refresher.snapshot.history}
        assert metrics["ngram", "tpot"] == 40
        assert metrics["plain", "itl"] == 200
        assert refresher.stats_state()["redis"].ok
        assert refresher.stats_state()["database"].ok
        await refresher.aclose()
    await store.aclose()


async def test_a_change_of_the_preferred_arm_is_logged_once_with_its_numbers(tmp_path, redis_url, database):
    store = StatsStore(redis_url, timeout_s=PATIENT_S)
    await write(tmp_path, store, database, 60)
    for _ in range(2):  # two gateways see the same change
        refresher = refresher_of(store, database)
        await refresher.refresh()
        for _ in range(3):
            await refresher._build(changed=True)
            await refresher._log_switches()
    lines = await database.switches(time.time() - 600)
    assert [(line.task, line.new_arm, line.policy) for line in lines] == [("code", str(ARM), "abc")]
    assert lines[0].numbers["arms"][str(ARM)]["a"] == pytest.approx(2.75, rel=0.01)
    assert str(ARM) in lines[0].reason
    await store.aclose()


async def test_a_frozen_store_makes_the_snapshot_stale_and_then_fresh_again(tmp_path, valkey_server, database):
    patient, store = StatsStore(valkey_server.url, timeout_s=PATIENT_S), StatsStore(valkey_server.url, timeout_s=0.1)
    await write(tmp_path, patient, database, 10)
    refresher = refresher_of(store, database)
    await refresher.start()
    await until(lambda: not refresher.snapshot.stale and refresher.snapshot.nodes)
    nodes = len(refresher.snapshot.nodes)
    valkey_server.signal(signal.SIGSTOP)
    await until(lambda: refresher.snapshot.stale)
    assert len(refresher.snapshot.nodes) == nodes
    assert not refresher.stats_state()["redis"].ok
    valkey_server.signal(signal.SIGCONT)
    await until(lambda: not refresher.snapshot.stale and refresher.stats_state()["redis"].ok)
    await refresher.aclose()
    await patient.aclose()
    await store.aclose()


async def test_stores_that_are_away_from_the_start_do_not_stop_it(tmp_path):
    store = StatsStore(f"unix://{tmp_path}/nothing.sock")
    database = Database("postgresql://nobody@127.0.0.1:1/nothing", timeout_s=1.0)
    refresher = refresher_of(store, database)
    await refresher.start()
    await until(lambda: "No such file" in refresher.stats_state()["redis"].detail)
    await until(lambda: "database" in refresher.stats_state()["database"].detail)
    assert refresher.snapshot.stale
    await refresher.aclose()
    await store.aclose()
    await database.aclose()


async def test_the_schema_is_made_when_the_database_comes_late(tmp_path):
    late = tmp_path / "late"
    url = f"sqlite:///{late / 'breakeven.db'}"
    stores = Stores(Settings.from_env({"BREAKEVEN_DATA_DIR": str(tmp_path / "data"), "BREAKEVEN_DATABASE_URL": url}))
    await stores.start()
    refresher = refresher_of(None, stores.database)
    await refresher.start()
    await until(lambda: "unable to open" in stores.state().get("schema", {}).get("detail", ""))
    await until(lambda: refresher.stats_state()["database"].detail not in ("", "not read yet"))
    assert not refresher.stats_state()["database"].ok
    late.mkdir()
    await until(lambda: refresher.stats_state()["database"].ok and "schema" not in stores.state())
    assert await stores.database.pending_migrations() == []
    await refresher.aclose()
    await stores.aclose()


async def test_history_starts_with_the_last_day_and_only_grows(database):
    now = time.time()
    ages = [90_000, 80_000, 7200, 600, 200, 30]  # seconds; the first is older than a day
    await database.insert_records([make_record(f"r{i}", at=now - age, tpot_s=0.01) for i, age in enumerate(ages)])
    history = History()
    for _ in range(2):
        await history.read(database)
        assert tpots(history) == 5
    await database.insert_records([make_record("new", at=now), make_record("late", at=now - 65)])
    await history.read(database)
    assert tpots(history) == 7
    kept = history.cells()[0].histogram
    count = kept.count
    await database.insert_records([make_record("newer", at=now)])
    await history.read(database)
    assert kept.count == count
    assert tpots(history) == 8


def tpots(history):
    return sum(cell.histogram.count for cell in history.cells() if cell.metric == "tpot")


async def test_load_that_a_server_does_not_tell_is_heard_from_the_other_gateways(redis_url):
    silent = [GenericBackend(Target("pool", "http://127.0.0.1:9")) for _ in range(2)]
    others = [GenericBackend(Target("pool", "http://127.0.0.1:8")) for _ in range(2)]
    pools = [ReplicaPool("pool", [one, other]) for one, other in zip(silent, others, strict=True)]
    stores = [StatsStore(redis_url, timeout_s=PATIENT_S) for _ in pools]
    gateways = [
        Refresher(backends=lambda pool=pool: {"pool": pool}, store=store)
        for pool, store in zip(pools, stores, strict=True)
    ]
    try:
        silent[0].in_flight = 4
        for _ in range(2):
            for gateway in gateways:
                await gateway.share_loads()
        assert [pool.untold_load() for pool in pools] == [4, 0]
        assert [one.running_seen for one in silent] == [0, 2]  # an equal share of each of its two servers
        silent[1].tells_load, silent[1].running_seen = True, 9
        await gateways[1].share_loads()
        assert silent[1].running_seen == 9
        assert [replica.running_seen for replica in others] == [0, 4]  # all of it, as the only one that tells none
    finally:
        for store in stores:
            await store.aclose()
