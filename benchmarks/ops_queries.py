"""The operations page and the report over ten million requests of 90 days, on SQLite and PostgreSQL, and their size.

`python -m benchmarks ops_queries`; about six minutes. Nothing is cached between two readings but by the database.
`--there` reads histories that were made before.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import text

from benchmarks._ops_history import write_history
from gateway.db import Database
from gateway.ops.collect import OpsReader
from gateway.ops.live import LiveReports
from gateway.ops.window import parse_window
from tests.fixtures.records import make_record
from tests.fixtures.stores import _create_database, running_postgres

ROLLUPS = ("activity_minutes", "activity_packed", "latency_minutes", "latency_packed")
REQUESTS, DAYS, RAW = 10_000_000, 90, 100_000
READS = {"15m": 20, "1h": 20, "24h": 20, "7d": 10, "30d": 10, "90d": 10}
VIEWERS, WATCHED_S = (1, 20), 20.0
LIMITS = {
    "page_p99_ms": {"sqlite": 1000, "postgresql": 300},
    "report_s": 5,
    "rollups_mb": 200,
    "records_per_s": 2000,
    "viewer_core_percent": 1,
}


def run(requests: int = REQUESTS, raw: int = RAW, there: Sequence[str] = ()) -> dict[str, Any]:
    """Return what was measured, beside what is to be reached; `there` are histories made before (see `fill`)."""
    return asyncio.run(_both(requests, raw, there))


async def _both(requests: int, raw: int, there: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {"requests": requests, "days": DAYS, "raw_rows": raw, "limits": LIMITS}
    found["machine"] = {"cpus": os.cpu_count(), "python": platform.python_version()}
    if there:
        return found | {_kind(url): await _measure(url) for url in there}
    with tempfile.TemporaryDirectory(prefix="bk-ops-") as folder, running_postgres() as server:
        for url in (f"sqlite:///{Path(folder) / 'ops.db'}", await _create_database(server)):
            took = await fill(url, requests, raw)
            found[_kind(url)] = {"generated_s": took, **await _measure(url)}
    return found


def _kind(url: str) -> str:
    return url.partition(":")[0].partition("+")[0]


async def fill(url: str, requests: int, raw: int) -> float:
    """Make a history in an empty database; return the seconds that it took."""
    database = Database(url, timeout_s=60.0)
    await database.migrate()
    began = time.perf_counter()
    await write_history(database, requests=requests, days=DAYS, raw=raw, now=time.time())
    took = time.perf_counter() - began
    await _analyse(database)
    await database.aclose()
    return round(took, 1)


async def _measure(url: str) -> dict[str, Any]:
    database = Database(url, timeout_s=60.0)
    reader = OpsReader(database, patience_s=300.0)
    out: dict[str, Any] = {"rollups_mb": await _size_mb(database), "page_ms": {}}
    for window, times in READS.items():
        took = [await _timed(reader.report(parse_window(window))) for _ in range(times)]
        out["page_ms"][window] = {"p50": _ms(sorted(took)[len(took) // 2]), "max": _ms(max(took))}
    out["charts_ms"] = {}
    for window in READS:
        took = [await _timed(reader.series(parse_window(window))) for _ in range(3)]
        out["charts_ms"][window] = _ms(max(took))
    out["report_90d_s"] = round(max([await _timed(reader.report(90 * 86400.0, study=True)) for _ in range(2)]), 2)
    out["report_7d_s"] = round(await _timed(reader.report(7 * 86400.0, study=True)), 2)
    out["records_per_s"] = await _write_rate(database)
    out["viewer_core_percent"] = {str(viewers): await _viewer_cost(reader, viewers) for viewers in VIEWERS}
    await database.aclose()
    return out


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true", help="only one line of JSON")
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--there", nargs="*", default=[], help="URLs of databases that hold such a history")
    given = parser.parse_args()
    figures = run(given.requests, min(RAW, given.requests), given.there)
    print(json.dumps(figures, indent=None if given.json else 2))


async def _timed(job: Any) -> float:  # noqa: ANN401  # any awaitable
    began = time.perf_counter()
    await job
    return time.perf_counter() - began


def _ms(seconds: float) -> int:
    return round(1000 * seconds)


async def _analyse(database: Database) -> None:
    """Let the planner know the tables, as autovacuum and `PRAGMA optimize` do in time."""
    async with database._write(300.0) as connection:
        for table in ("cells", *ROLLUPS, "requests"):
            await connection.execute(text(f"ANALYZE {table}"))


async def _size_mb(database: Database) -> dict[str, float]:
    """Return the megabytes of the roll-up tables, indexes included."""
    sizes: dict[str, float] = {}
    for table in ROLLUPS:
        async with database._read(120.0) as connection:
            if connection.dialect.name == "postgresql":
                query = text(f"SELECT pg_total_relation_size('{table}')")
            else:
                query = text("SELECT sum(pgsize) FROM dbstat WHERE name LIKE :name").bindparams(name=f"%{table}%")
            size = float((await connection.execute(query)).scalar() or 0)
            rows = int((await connection.execute(text(f"SELECT count(*) FROM {table}"))).scalar() or 0)
        sizes |= {table: round(size / 1e6, 1), f"{table}_rows": rows}
    sizes["total"] = round(sum(sizes[table] for table in ROLLUPS), 1)
    return sizes


async def _viewer_cost(reader: OpsReader, viewers: int) -> float:
    """Return the share of a core, per cent, that each of some viewers of the last hour costs this process."""
    live = LiveReports(reader)

    async def watch() -> None:
        async for _ in live.events(3600.0):
            pass

    await live.report(3600.0)
    began, spent = time.perf_counter(), time.process_time()
    watching = [asyncio.create_task(watch()) for _ in range(viewers)]
    await asyncio.sleep(WATCHED_S)
    spent, took = time.process_time() - spent, time.perf_counter() - began
    for each in watching:
        each.cancel()
    await asyncio.gather(*watching, return_exceptions=True)
    return round(100 * spent / took / viewers, 2)


async def _write_rate(database: Database, batches: int = 20, size: int = 500) -> int:
    """Return how many records a second one writer stores, in batches as the recorder does."""
    now, spent = time.time(), 0.0
    for batch in range(batches):
        records = [
            make_record(f"rate-{now}-{batch}-{at}", at=now + batch / 4, task=("code", "chat", "math")[at % 3])
            for at in range(size)
        ]
        spent += await _timed(database.insert_records(records, writer="bench"))
    return round(batches * size / spent)


if __name__ == "__main__":
    main()
