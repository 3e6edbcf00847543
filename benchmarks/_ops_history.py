"""A made-up history in the database's own tables: 90 days of roll-ups as the gateway keeps them, and raw rows.

Requests are drawn one by one (numpy), summed by hour, and by minute for the latest two days, and written in bulk. Eight
tasks, five applications, two temperature bands, three context bands, load by the hour of the day; a holdout of 2 % and
probes of 2 %. For `ops_queries`.
"""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import Any

import numpy as np
from msgspec.structs import asdict
from numpy.typing import NDArray
from sqlalchemy import insert, text
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.db import Database
from gateway.db.maintenance import ANY, LATE, MINUTES_KEPT
from gateway.db.models import DAY, HOUR, MINUTE, PIECE, WEEK, Base, Cell, Request
from gateway.db.packed import pack, pack_histograms
from gateway.db.records import COLUMNS, row_of
from gateway.db.rollups import SUMS
from gateway.histogram import METRICS, LogHistogram
from gateway.types import DEFAULT_TASKS, CellKey
from tests.fixtures.records import make_record

KEYS = ("3f9a1c07e2b4", "8d02b6e1f55a", "c71e4a90d3f8", "05be9927ac61", "e4d81f3067bb")
DRAWS = (20_000, 20_000, -20_000)
"""Of routed requests, probes and those that the holdout held."""
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
Ints = NDArray[np.int64]
Drawn = dict[str, NDArray[Any]]
"""Requests by column."""


async def write_history(database: Database, *, requests: int, days: int, raw: int, now: float, seed: int = 1) -> None:
    """Fill an empty, migrated database."""
    rng = np.random.default_rng(seed)
    end = int(now // 60)
    fresh = end // 60 * 60 if end % 60 >= LATE else end // 60 * 60 - 60
    out = _Rows()
    week: list[Drawn] = []
    for day in range((end - days * 1440) // 1440 * 1440, fresh, 1440):
        whole: list[Drawn] = []
        for hour in range(max(day, (end - days * 1440) // 60 * 60), min(day + 1440, fresh), 60):
            steps = range(hour, hour + 60) if hour >= fresh - MINUTES_KEPT else [hour]
            parts = [_draw(rng, _count(rng, requests / days, minute, 60 // len(steps)), minute) for minute in steps]
            drawn = _joined(parts)
            drawn["offset"] = np.repeat(np.arange(len(parts)), [len(part["task"]) for part in parts])
            if len(steps) > 1:
                out.pack_minutes(rng, drawn, hour)
            out.pack(rng, drawn, HOUR, hour)
            whole.append(drawn)
        out.pack(rng, _joined(whole), DAY, day)
        week.append(_joined(whole))
        if day % WEEK == WEEK - DAY or day + DAY >= fresh:
            out.pack(rng, _joined(week), WEEK, day - day % WEEK)
            week = []
    for minute in range(fresh, end):
        out.write(rng, _draw(rng, _count(rng, requests / days, minute, 1), minute), minute)
    await out.flush(database)
    await _write_raw(database, raw, now, rng)


def _count(rng: np.random.Generator, a_day: float, minute: int, minutes: int) -> int:
    return int(rng.poisson(a_day * minutes / 1440 * (1 + 0.6 * np.sin(minute / 1440 * 2 * np.pi))))


def _joined(parts: list[Drawn]) -> Drawn:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


class _Rows:
    """Rows that are yet to be written, and the numbers of their cells."""

    def __init__(self) -> None:
        self._cells: dict[int, int] = {}
        self._rows: dict[str, list[tuple[Any, ...]]] = {
            "activity_packed": [], "latency_packed": [], "activity_minutes": [], "latency_minutes": [],
        }  # fmt: skip

    def pack(self, rng: np.random.Generator, drawn: Drawn, span: int, start: int) -> None:
        """Add the packed rows of an hour or a day."""
        offsets = drawn["offset"] if span == MINUTE else 0 * drawn["task"]
        cells = self._numbers(drawn, () if span == MINUTE else ("temperature",))
        (at, cell, key, draw), table = _summed([offsets, cells, drawn["key"], _draws(drawn)], _sums(drawn))
        self._rows["activity_packed"].append((span, start, json.dumps(KEYS), pack([at, cell, key, draw, *table])))
        cells = self._numbers(drawn, () if span == MINUTE else ("temperature", "context"))
        for metric, (which, buckets) in _latencies(rng, drawn).items():
            packed = pack_histograms(*_counted(offsets[which], cells[which], buckets))
            self._rows["latency_packed"].append((span, start, metric, packed))

    def pack_minutes(self, rng: np.random.Generator, drawn: Drawn, hour: int) -> None:
        """Add the rows of an hour that still tell its minutes."""
        for first in range(0, HOUR, PIECE):
            mine = drawn["offset"] // PIECE == first // PIECE
            part = {name: column[mine] for name, column in drawn.items()}
            self.pack(rng, part | {"offset": part["offset"] - first}, MINUTE, hour + first)

    def write(self, rng: np.random.Generator, drawn: Drawn, minute: int) -> None:
        """Add the rows of a minute that no hour tells yet."""
        cells = self._numbers(drawn, ())
        (cell, key, draw), table = _summed([cells, drawn["key"], _draws(drawn)], _sums(drawn))
        for at, (number, name, of) in enumerate(zip(cell.tolist(), key.tolist(), draw.tolist(), strict=True)):
            self._rows["activity_minutes"].append((minute, number, KEYS[name], of, *table[:, at].tolist()))
        for metric, (which, buckets) in _latencies(rng, drawn).items():
            for number in np.unique(cells).tolist():
                values, counts = np.unique(buckets[cells[which] == number], return_counts=True)
                histogram = LogHistogram(dict(zip(values.tolist(), counts.tolist(), strict=True)))
                self._rows["latency_minutes"].append((minute, number, metric, "bench", histogram.encode()))

    def _numbers(self, drawn: Drawn, without: tuple[str, ...]) -> Ints:
        """Return the number of each request's cell, `without` what hours and days do not tell."""
        index = drawn["task"]
        for name, size in (("temperature", 3), ("context", 4), ("load", 5), ("arm", 3)):
            index = index * size + (size - 1 if name in without else drawn[name])
        names, which = np.unique(index, return_inverse=True)
        numbers = [self._cells.setdefault(name, len(self._cells) + 1) for name in names.tolist()]
        return np.array(numbers, dtype=np.int64)[which]

    async def flush(self, database: Database) -> None:
        """Write them, cells first."""
        async with database._write(300.0) as connection:
            cells = [{"id": number, **asdict(_key_of(index))} for index, number in self._cells.items()]
            await connection.execute(insert(Cell), cells)
            if connection.dialect.name == "postgresql":  # which numbers cells itself and does not see ours
                await connection.execute(text("SELECT setval('cells_id_seq', :last)"), {"last": len(cells)})
            for table, rows in self._rows.items():
                await _bulk(connection, Base.metadata.tables[table].columns.keys(), table, rows)


def _draw(rng: np.random.Generator, n: int, minute: int) -> Drawn:
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


def _draws(drawn: Drawn) -> Ints:
    return np.array(DRAWS)[drawn["state"]]


def _summed(keys: list[Ints], sums: dict[str, NDArray[Any]]) -> tuple[list[Ints], Ints]:
    """Return the distinct keys, in order, and the sums over each: a row for each of `SUMS`."""
    index = keys[-1] - min(DRAWS)
    for key in reversed(keys[:-1]):
        index = index + key * (index.max() + 1)
    names, first, which = np.unique(index, return_index=True, return_inverse=True)
    columns = [np.bincount(which.ravel(), weights=sums[name], minlength=len(names)) for name in SUMS]
    return [key[first] for key in keys], np.stack(columns).astype(np.int64)


def _sums(drawn: Drawn) -> dict[str, NDArray[Any]]:
    ones = 1 - drawn["failed"]
    tokens, units = drawn["tokens"] * ones, np.floor(drawn["time_s"] * 1e4) * ones
    batch = 2.0 ** drawn["load"]
    shared = np.floor(units / batch)
    rounds = drawn["rounds"] * ones
    drafted = rounds * drawn["k"]
    out: dict[str, NDArray[Any]] = dict.fromkeys(SUMS, np.zeros(len(tokens)))
    out |= {
        "requests": np.ones(len(tokens)), "failed": drawn["failed"], "errors": drawn["failed"],
        "prompt_tokens": 400 + 0 * tokens,
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


def _counted(offsets: Ints, cells: Ints, buckets: Ints) -> tuple[list[Ints], Ints, Ints]:
    """Return the keys, buckets and counts of values; without minutes to tell apart, counted before they are sorted."""
    if offsets.any():
        return [offsets, cells], buckets, np.ones(len(buckets), dtype=np.int64)
    counts = np.bincount(cells * 1401 + buckets)
    filled = np.flatnonzero(counts)
    return [0 * filled, filled // 1401], filled % 1401, counts[filled]


def _latencies(rng: np.random.Generator, drawn: Drawn) -> dict[str, tuple[Ints, Ints]]:
    """Return (request, bucket) of each value by metric; of each answer a few gaps between events are drawn."""
    tpot = drawn["time_s"] / drawn["tokens"]
    gap = np.repeat(drawn["plain_s"] * drawn["cost"], GAPS) * rng.lognormal(0, 0.1, GAPS * len(tpot))
    values = {"ttft": drawn["ttft_s"], "tpot": tpot, "itl": gap, "e2e": drawn["ttft_s"] + drawn["time_s"]}
    one = np.arange(len(tpot))
    found = {}
    for metric in METRICS:
        bucket = np.clip(np.ceil(np.log(values[metric] / 1e-6) / _LOG_GAMMA), 0, 1400).astype(np.int64)
        found[str(metric)] = (np.repeat(one, GAPS) if metric == "itl" else one, bucket)
    return found


def _key_of(index: int) -> CellKey:
    rest, arm = divmod(index, 3)
    rest, load = divmod(rest, 5)
    rest, context = divmod(rest, 4)
    task, temperature = divmod(rest, 3)
    method, k = ARMS[arm]
    place = (TEMPERATURES[temperature], CONTEXTS[context], LOADS[load])
    return CellKey("engine", ANY if CONTEXTS[context] == ANY else "e1", method, k, DEFAULT_TASKS[task], *place)


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
