"""A made-up history in the database's own tables: 90 days of roll-ups as the gateway keeps them, and raw rows.

Requests are drawn one by one (numpy), summed by hour, and by minute for the latest two days, and written in bulk. Eight
tasks, five applications, two temperature bands, three context bands, load by the hour of the day; a holdout of 2 % and
probes of 2 %. For `ops_queries`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import insert, text
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.db import Database
from gateway.db.maintenance import ANY
from gateway.db.models import TOLD, ActivityRollup, Cell, LatencyRollup, Request
from gateway.db.records import COLUMNS, row_of
from gateway.db.rollups import SUMS
from gateway.histogram import METRICS, LogHistogram
from gateway.types import DEFAULT_TASKS, CellKey
from tests.fixtures.records import make_record

KEYS = ("web", "mobile", "batch", "search", "support")
STATES = ("ok", "probe", "holdout")
ARMS = (("plain", 0), ("ngram", 2), ("ngram", 4))
ACCEPT = (0.85, 0.7, 0.6, 0.55, 0.5, 0.5, 0.15, 0.3)
"""Chance that a draft token is accepted, by task."""
INCUMBENT = (2, 2, 2, 2, 2, 2, 0, 1)
"""Index of each task's usual arm."""
TEMPERATURES, CONTEXTS, LOADS = ("0", "1", ANY), ("512", "2k", "8k", ANY), (1, 2, 4, 8, 16)
"""The last of each stands in compacted rows."""
GAPS = 6
"""Gaps between events drawn for each answer."""
_LOG_GAMMA = np.log(1.02)
_MINUTES_KEPT = 48 * 60
Ints = NDArray[np.int64]
Row = tuple[Any, ...]


async def write_history(database: Database, *, requests: int, days: int, raw: int, now: float, seed: int = 1) -> None:
    """Fill an empty, migrated database."""
    rng = np.random.default_rng(seed)
    end = int(now // 60)
    start = end - days * 1440
    fresh = end // 60 * 60
    spans = [(minute, 60) for minute in range(start // 60 * 60, fresh, 60)]
    spans += [(minute, TOLD if minute < fresh else 1) for minute in range(fresh - _MINUTES_KEPT, end)]
    cells: dict[tuple[int, ...], int] = {}
    activity: list[tuple[Any, ...]] = []
    latency: list[tuple[Any, ...]] = []
    day: list[dict[str, NDArray[Any]]] = []
    day_start = 0
    for minute, span in spans:
        count = int(
            rng.poisson(requests * max(span, 1) / (days * 1440) * (1 + 0.6 * np.sin(minute / 1440 * 2 * np.pi)))
        )
        if day and (span < 60 or minute % 1440 == 0):
            activity += _activity_rows(_joined(day), day_start, 1440, cells)
            latency += _latency_rows(rng, _joined(day), day_start, 1440, cells)
            day = []
        if count:
            drawn = _draw(rng, count, minute)
            if span > 1:
                day, day_start = [*day, drawn], minute - minute % 1440
            activity += _activity_rows(drawn, minute, span, cells)
            latency += _latency_rows(rng, drawn, minute, span, cells)
        if len(activity) > 20_000:
            await _flush(database, cells, activity, latency)
    await _flush(database, cells, activity, latency)
    await _write_raw(database, raw, now, rng)


def _joined(parts: list[dict[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _draw(rng: np.random.Generator, n: int, minute: int) -> dict[str, NDArray[Any]]:
    """Draw requests: their cell, who asked, how they were decided, and what they cost."""
    task = rng.choice(8, n, p=[0.2, 0.25, 0.05, 0.1, 0.1, 0.05, 0.05, 0.2])
    busy = int(np.clip(2 + 1.5 * np.sin(minute / 1440 * 2 * np.pi), 0, 3))
    load = busy + rng.integers(0, 2, n)
    state = rng.choice(3, n, p=[0.96, 0.02, 0.02])
    arm = np.array(INCUMBENT)[task]
    arm = np.where(state == 1, (arm + 1) % 3, arm)
    arm = np.where(state == 2, np.where(rng.random(n) < 0.5, 0, 2), arm)
    k = np.array([0, 2, 4])[arm]
    tokens = rng.geometric(1 / 180, n) + 8
    accept = np.clip(np.array(ACCEPT)[task] + rng.normal(0, 0.12, n), 0.02, 0.97)
    a = 1 + np.where(k > 0, accept * (1 - accept**k) / (1 - accept), 0)
    plain_s = 0.008 * (1 + 0.06 * 2**load) * rng.lognormal(0, 0.15, n)
    cost = 1 + np.where(k > 0, 0.03 * k + 0.04 * load * k / 4, 0)
    rounds = np.where(k > 0, np.maximum(1, tokens / a), 0).astype(np.int64)
    return {
        "task": task, "temperature": rng.integers(0, 2, n), "load": load, "arm": arm, "k": k, "state": state,
        "context": rng.choice(3, n, p=[0.6, 0.3, 0.1]), "key": rng.choice(5, n, p=[0.4, 0.3, 0.1, 0.15, 0.05]),
        "tokens": tokens, "rounds": rounds, "accept": accept, "plain_s": plain_s, "cost": cost,
        "time_s": tokens / a * cost * plain_s, "ttft_s": rng.lognormal(-2.5, 0.5, n),
        "failed": (rng.random(n) < 0.002).astype(np.int64),
    }  # fmt: skip


def _cell_index(drawn: dict[str, NDArray[Any]], without: tuple[str, ...] = ()) -> Ints:
    """Return each request's cell as one number, `without` what compacted rows do not tell."""
    index = drawn["task"]
    for name, size in (("temperature", 3), ("context", 4), ("load", 5), ("arm", 3)):
        index = index * size + (size - 1 if name in without else drawn[name])
    return np.asarray(index, dtype=np.int64)


def _numbered(cells: dict[tuple[int, ...], int], index: int) -> int:
    return cells.setdefault((index,), len(cells) + 1)


def _activity_rows(
    drawn: dict[str, NDArray[Any]], minute: int, span: int, cells: dict[tuple[int, ...], int]
) -> Iterator[tuple[Any, ...]]:
    """Yield rows of `activity_rollups` without their cells' ids resolved."""
    cell_of = _cell_index(drawn, ("temperature",) if span > 1 else ())
    group = (cell_of * 5 + drawn["key"]) * 3 + drawn["state"]
    names, which = np.unique(group, return_inverse=True)
    sums = _sums(drawn)
    columns = [np.bincount(which, weights=sums[name], minlength=len(names)).astype(np.int64) for name in SUMS]
    table = np.stack(columns, axis=1).tolist()
    for at, name in enumerate(names.tolist()):
        cell, key, state = name // 15, name // 3 % 5, name % 3
        yield (span, minute, _numbered(cells, cell), KEYS[key], STATES[state], *table[at])


def _sums(drawn: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    ones = 1 - drawn["failed"]
    tokens, units = drawn["tokens"] * ones, np.floor(drawn["time_s"] * 1e4) * ones
    batch = 2.0 ** drawn["load"]
    shared = np.floor(units / batch)
    rounds = drawn["rounds"] * ones
    drafted = rounds * drawn["k"]
    out: dict[str, NDArray[Any]] = dict.fromkeys(SUMS, np.zeros(len(tokens)))
    out |= {
        "requests": np.ones(len(tokens)), "failed": drawn["failed"], "prompt_tokens": 400 + 0 * tokens,
        "completion_tokens": tokens, "overhead_us": 300 + 0 * tokens, "ttft_us": drawn["ttft_s"] * 1e6,
        "e2e_us": (drawn["ttft_s"] + drawn["time_s"]) * 1e6, "measured": ones, "decode_tokens": tokens,
        "decode_us": units * 100, "tokens_tokens": tokens**2, "tokens_time": tokens * units, "time_time": units**2,
        "accelerator_tokens": tokens, "accelerator_us": shared * 100, "tokens_accelerator": tokens * shared,
        "accelerator_accelerator": shared**2, "rounds": rounds, "drafted": drafted,
        "undrafted": np.where(drawn["k"] == 0, tokens, 0), "plain_us": np.where(drawn["k"] == 0, units * 100, 0),
        "draft_us": np.where(drawn["k"] > 0, units * 5, 0), "verify_us": np.where(drawn["k"] > 0, units * 95, 0),
    }  # fmt: skip
    left, accepted = rounds.astype(float), np.zeros(len(tokens))
    for j in range(4):  # geometric: a round goes on with the request's own chance, up to k
        goes = np.floor(np.where(drawn["k"] > j, left * drawn["accept"], 0))
        out[f"accepted_{j}"] = left - goes
        accepted, left = accepted + goes, goes
    out["accepted_4"] = left
    return out | {"accepted": accepted, "zero_rounds": out["accepted_0"]}


def _latency_rows(
    rng: np.random.Generator, drawn: dict[str, NDArray[Any]], minute: int, span: int, cells: dict[tuple[int, ...], int]
) -> Iterator[tuple[Any, ...]]:
    """Yield rows of `latency_rollups`; of each answer a few gaps between events are drawn."""
    index = _cell_index(drawn, ("temperature", "context") if span > 1 else ())
    tpot = drawn["time_s"] / drawn["tokens"]
    gap = np.repeat(drawn["plain_s"] * drawn["cost"], GAPS) * rng.lognormal(0, 0.1, GAPS * len(tpot))
    values = {"ttft": drawn["ttft_s"], "tpot": tpot, "itl": gap, "e2e": drawn["ttft_s"] + drawn["time_s"]}
    for metric in METRICS:
        which = np.repeat(index, GAPS) if metric == "itl" else index
        bucket = np.clip(np.ceil(np.log(values[metric] / 1e-6) / _LOG_GAMMA), 0, 1400).astype(np.int64)
        both, counts = np.unique(which * 1401 + bucket, return_counts=True)
        owner = both // 1401
        first = np.flatnonzero(np.append(True, np.diff(owner) > 0)).tolist()
        buckets, numbers = (both % 1401).tolist(), counts.tolist()
        for begin, end in zip(first, [*first[1:], len(buckets)], strict=True):
            histogram = LogHistogram(dict(zip(buckets[begin:end], numbers[begin:end], strict=True)))
            cell = _numbered(cells, int(owner[begin]))
            yield (span, minute, cell, metric, "bench", histogram.count, histogram.encode())


def _key_of(index: int) -> CellKey:
    rest, arm = divmod(index, 3)
    rest, load = divmod(rest, 5)
    rest, context = divmod(rest, 4)
    task, temperature = divmod(rest, 3)
    method, k = ARMS[arm]
    place = (TEMPERATURES[temperature], CONTEXTS[context], LOADS[load])
    return CellKey("engine", ANY if CONTEXTS[context] == ANY else "e1", method, k, DEFAULT_TASKS[task], *place)


async def _flush(
    database: Database,
    cells: dict[tuple[int, ...], int],
    activity: list[tuple[Any, ...]],
    latency: list[tuple[Any, ...]],
) -> None:
    """Write what has gathered, and the cells that are new."""
    async with database._write(300.0) as connection:
        known = getattr(database, "_bench_cells", 0)
        fresh = [
            {"id": number, **{name: getattr(_key_of(index), name) for name in CellKey.__struct_fields__}}
            for (index,), number in list(cells.items())[known:]
        ]
        if fresh:
            await connection.execute(insert(Cell), fresh)
            if connection.dialect.name == "postgresql":  # which numbers cells itself and does not see ours
                await connection.execute(text("SELECT setval('cells_id_seq', :last)"), {"last": len(cells)})
        database._bench_cells = len(cells)  # type: ignore[attr-defined]
        await _bulk(connection, ActivityRollup.__table__.columns.keys(), "activity_rollups", activity)
        await _bulk(connection, LatencyRollup.__table__.columns.keys(), "latency_rollups", latency)
    activity.clear()
    latency.clear()


async def _bulk(connection: AsyncConnection, names: list[str], table: str, rows: list[tuple[Any, ...]]) -> None:
    """Copy rows in: COPY on PostgreSQL, executemany on SQLite."""
    if not rows:
        return
    if connection.dialect.name == "postgresql":
        raw = (await connection.get_raw_connection()).driver_connection
        assert raw is not None
        await raw.copy_records_to_table(table, records=rows, columns=names, timeout=300)
        return
    marks = ", ".join("?" * len(names))
    quoted = ", ".join(f'"{name}"' for name in names)
    await connection.exec_driver_sql(f"INSERT INTO {table} ({quoted}) VALUES ({marks})", rows)


async def _write_raw(database: Database, count: int, now: float, rng: np.random.Generator) -> None:
    """Write raw rows of the latest 30 days, alike but for id, time and task."""
    base = dict(zip(COLUMNS, row_of(make_record("base")), strict=True))
    for begin in range(0, count, 20_000):
        rows = []
        times = now - rng.random(min(20_000, count - begin)) * 30 * 86400
        for at, moment in enumerate(sorted(times.tolist()), begin):
            stamp = time.strftime("%Y-%m-%d %H:%M:%S.000000", time.gmtime(moment))
            rows.append((f"bench-{at}", stamp, *list(base.values())[2:]))
        async with database._write(300.0) as connection:
            if connection.dialect.name == "postgresql":
                rows = [(r[0], datetime.fromisoformat(r[1]).replace(tzinfo=UTC), *r[2:]) for r in rows]
            await _bulk(connection, list(COLUMNS), Request.__tablename__, rows)
