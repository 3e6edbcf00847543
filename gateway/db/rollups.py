"""Minute roll-ups: packed latency histograms and integer activity sums. `Database` calls it with fresh records only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.bands import context_band, load_band, temperature_band
from gateway.db.models import ACCEPTED_COLUMNS, CELL_COLUMNS, ActivityRollup, Cell, LatencyRollup
from gateway.db.records import clean, insert_for
from gateway.histogram import METRICS, LogHistogram, Metric
from gateway.types import CellKey, RequestRecord

MINUTE = 1
_LATENCY_KEY = ("span", "minute", "cell_id", "metric", "writer")
_ACTIVITY_KEY = ("span", "minute", "cell_id", "key_id", "state")
SUMS = tuple(column.name for column in ActivityRollup.__table__.columns if column.name not in _ACTIVITY_KEY)
"""The integer columns of `activity_rollups`."""
_CHUNK = 200
_TIME_UNIT_US = 100
_LONGEST_S = 86_400.0

LatencyKey = tuple[int, CellKey, Metric]
ActivityKey = tuple[int, CellKey, str, str]


def cell_of(record: RequestRecord) -> CellKey:
    """Return the cell of a record; the load is the mean batch it saw, else that at its decision."""
    load: float = record.decision.load
    if record.spec is not None and record.spec.batch_mean:
        load = round(record.spec.batch_mean)
    arm = record.arm
    bands = (temperature_band(record.temperature), context_band(record.prompt_tokens or 0), load_band(load))
    return CellKey(arm.backend, clean(record.epoch), arm.method, arm.k, clean(record.task), *bands)


def latencies(records: Iterable[RequestRecord]) -> dict[LatencyKey, LogHistogram]:
    """Return the histograms of complete, unscreened answers per minute, cell and metric."""
    found: dict[LatencyKey, LogHistogram] = {}
    for record in records:
        if _is_screened(record):
            continue
        minute, cell = int(record.at // 60), cell_of(record)
        for metric in METRICS:
            values = [value for value in _values(record, metric) if value is not None and 0 <= value < _LONGEST_S]
            if values:
                histogram = found.setdefault((minute, cell, metric), LogHistogram())
                for value in values:
                    histogram.add(value)
    return found


def activity(records: Iterable[RequestRecord]) -> dict[ActivityKey, dict[str, int]]:
    """Return the sums per minute, cell, API key and decision state."""
    found: dict[ActivityKey, dict[str, int]] = {}
    for record in records:
        key = (int(record.at // 60), cell_of(record), clean(record.key_id)[:64], record.decision.state[:16])
        sums = found.setdefault(key, dict.fromkeys(SUMS, 0))
        for name, value in _sums_of(record).items():
            sums[name] += value
    return found


async def cell_ids(connection: AsyncConnection, cells: Iterable[CellKey]) -> dict[CellKey, int]:
    """Return the number of each cell, giving one to those that have none."""
    wanted = sorted(set(cells))
    columns = [getattr(Cell, name) for name in CELL_COLUMNS]
    numbers: dict[CellKey, int] = {}
    for start in range(0, len(wanted), _CHUNK):
        chunk = wanted[start : start + _CHUNK]
        keys = [tuple(getattr(cell, name) for name in CELL_COLUMNS) for cell in chunk]
        rows = [dict(zip(CELL_COLUMNS, key, strict=True)) for key in keys]
        await connection.execute(insert_for(connection, Cell).on_conflict_do_nothing(), rows)
        found = await connection.execute(select(Cell.id, *columns).where(tuple_(*columns).in_(keys)))
        numbers |= {CellKey(*row[1:]): row[0] for row in found}
    return numbers


async def merge_latencies(
    connection: AsyncConnection,
    fresh: Mapping[LatencyKey, LogHistogram],
    numbers: Mapping[CellKey, int],
    *,
    writer: str,
    span: int = MINUTE,
) -> None:
    """Merge histograms into this writer's rows. No other process changes these, so reading before writing is safe."""
    wanted: dict[tuple[int, int, str], LogHistogram] = {
        (minute, numbers[cell], metric): histogram for (minute, cell, metric), histogram in fresh.items()
    }
    keys = sorted(wanted)
    table = LatencyRollup
    for start in range(0, len(keys), _CHUNK):
        chunk = keys[start : start + _CHUNK]
        own = (table.span == span, table.writer == writer)
        wanted_here = tuple_(table.minute, table.cell_id, table.metric).in_(chunk)
        stored = await connection.execute(
            select(table.minute, table.cell_id, table.metric, table.histogram).where(*own, wanted_here)
        )
        for minute, cell_id, metric, packed in stored:
            wanted[minute, cell_id, metric].merge(LogHistogram.decode(packed))
        rows = [
            {"span": span, "minute": key[0], "cell_id": key[1], "metric": key[2], "writer": writer,
             "count": wanted[key].count, "histogram": wanted[key].encode()}
            for key in chunk
        ]  # fmt: skip
        insert = insert_for(connection, table)
        replace = {"count": insert.excluded["count"], "histogram": insert.excluded.histogram}
        await connection.execute(insert.on_conflict_do_update(index_elements=_LATENCY_KEY, set_=replace), rows)


async def add_activity(
    connection: AsyncConnection,
    fresh: Mapping[ActivityKey, Mapping[str, int]],
    numbers: Mapping[CellKey, int],
    *,
    span: int = MINUTE,
) -> None:
    """Add sums to the shared rows, in key order so that gateways never wait for each other in a circle."""
    rows: list[dict[str, Any]] = [
        {"span": span, "minute": minute, "cell_id": numbers[cell], "key_id": key_id, "state": state, **sums}
        for (minute, cell, key_id, state), sums in fresh.items()
    ]
    rows.sort(key=lambda row: tuple(row[name] for name in _ACTIVITY_KEY))
    insert = insert_for(connection, ActivityRollup)
    added = {name: getattr(ActivityRollup, name) + insert.excluded[name] for name in SUMS}
    statement = insert.on_conflict_do_update(index_elements=_ACTIVITY_KEY, set_=added)
    for start in range(0, len(rows), _CHUNK):
        await connection.execute(statement, rows[start : start + _CHUNK])


def _values(record: RequestRecord, metric: Metric) -> Sequence[float | None]:
    match metric:
        case "ttft":
            return (record.ttft_s,)
        case "tpot":
            return (record.tpot_s,)
        case "e2e":
            return (record.e2e_s,)
        case "itl":
            return record.itl_s


def _is_screened(record: RequestRecord) -> bool:
    return record.status != 200 or record.fallback or record.loop


def _microseconds(seconds: float | None) -> int:
    return round(min(max(seconds or 0.0, 0.0), _LONGEST_S) * 1e6)


def _sums_of(record: RequestRecord) -> dict[str, int]:
    sums = {
        "requests": 1,
        "failed": int(record.status != 200),
        "fallbacks": int(record.fallback),
        "loops": int(record.loop),
        "prompt_tokens": record.prompt_tokens or 0,
        "completion_tokens": record.completion_tokens or 0,
        "overhead_us": _microseconds(record.overhead_s),
        "ttft_us": _microseconds(record.ttft_s),
        "e2e_us": _microseconds(record.e2e_s),
    }
    if _is_screened(record):
        return sums
    tokens = max(0, (record.completion_tokens or 0) - 1)
    if tokens and record.tpot_s:
        time_us = _microseconds(record.tpot_s * tokens)
        units = time_us // _TIME_UNIT_US
        sums |= {"measured": 1, "decode_tokens": tokens, "decode_us": time_us}
        sums |= {"tokens_tokens": tokens * tokens, "tokens_time": tokens * units, "time_time": units * units}
    return sums | _spec_sums(record)


def _spec_sums(record: RequestRecord) -> dict[str, int]:
    spec = record.spec
    if spec is None:
        return {}
    sums = {
        "rounds": spec.rounds,
        "drafted": spec.drafted,
        "accepted": spec.accepted,
        "zero_rounds": spec.histogram[0] if spec.histogram else 0,
        "undrafted": spec.undrafted or 0,
        "draft_us": _microseconds(spec.draft_s),
        "verify_us": _microseconds(spec.verify_s),
        "plain_us": _microseconds(spec.plain_s),
    }
    if record.decision.plain_s is not None:
        emitted = spec.rounds + spec.accepted + (spec.undrafted or 0)
        sums["expected_plain_us"] = _microseconds(record.decision.plain_s * emitted)
        sums["expected_round_plain_us"] = _microseconds(record.decision.plain_s * spec.rounds)
    for accepted, rounds in enumerate(spec.histogram):
        name = f"accepted_{min(accepted, ACCEPTED_COLUMNS - 1)}"
        sums[name] = sums.get(name, 0) + rounds
    return sums
