"""Minute roll-ups: packed latency histograms and integer activity sums. `Database` calls it with fresh records only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any

import msgspec
from msgspec.structs import asdict
from sqlalchemy import Dialect, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.bands import context_band, load_band, temperature_band
from gateway.db.models import ACCEPTED_COLUMNS, CELL_COLUMNS, ActivityMinute, Cell, LatencyMinute
from gateway.db.records import clean, insert_for, insert_of
from gateway.histogram import METRICS, LogHistogram, Metric
from gateway.types import CellKey, RequestRecord, Spec

_LATENCY_KEY = ("minute", "cell_id", "metric", "writer")
_ACTIVITY_KEY = ("minute", "cell_id", "key_id", "draw")
SUMS = tuple(column.name for column in ActivityMinute.__table__.columns if column.name not in _ACTIVITY_KEY)
"""The integer columns of `activity_minutes`, in order."""
_CHUNK = 200
_TIME_UNIT_US = 100
_LONGEST_S = 86_400.0

LatencyKey = tuple[int, CellKey, Metric]
ActivityKey = tuple[int, CellKey, str, int]
Placed = tuple[RequestRecord, CellKey]
"""A record with the cell that `cell_of` gives it."""


def cell_of(record: RequestRecord) -> CellKey:
    """Return the cell of a record; the load is the mean batch it saw, else that at its decision."""
    load: float = record.decision.load
    if record.spec is not None and record.spec.batch_mean:
        load = round(record.spec.batch_mean)
    arm = record.arm
    bands = (temperature_band(record.temperature), context_band(record.prompt_tokens or 0), load_band(load))
    return CellKey(arm.backend, clean(record.epoch), arm.method, arm.k, clean(record.task), *bands)


def latencies(placed: Iterable[Placed]) -> dict[LatencyKey, LogHistogram]:
    """Return the histograms of complete, unscreened answers per minute, cell and metric."""
    values: dict[tuple[int, CellKey], tuple[list[float | None], ...]] = {}
    for record, cell in placed:
        if _is_screened(record):
            continue
        key = (int(record.at // 60), cell)
        lists = values.get(key)
        if lists is None:
            lists = values[key] = tuple([] for _ in METRICS)
        ttft, itl, tpot, e2e = lists
        ttft.append(record.ttft_s)
        tpot.append(record.tpot_s)
        e2e.append(record.e2e_s)
        itl += record.itl_s
    found: dict[LatencyKey, LogHistogram] = {}
    for (minute, cell), lists in values.items():
        for metric, given in zip(METRICS, lists, strict=True):
            kept = [value for value in given if value is not None and 0 <= value < _LONGEST_S]
            if kept:
                found[minute, cell, metric] = LogHistogram.of(kept)
    return found


def activity(placed: Iterable[Placed]) -> dict[ActivityKey, dict[str, int]]:
    """Return the sums per minute, cell, API key and draw of the holdout."""
    found: dict[ActivityKey, dict[str, int]] = {}
    for record, cell in placed:
        key = (int(record.at // 60), cell, clean(record.key_id)[:64], draw_of(record))
        sums = found.get(key)
        if sums is None:
            sums = found[key] = dict.fromkeys(SUMS, 0)
        for name, value in _sums_of(record).items():
            sums[name] += value
    return found


def draw_of(record: RequestRecord) -> int:
    """Return the `draw` of `ActivityMinute`: whether the holdout could have held this request, and whether it did."""
    share = 0 if record.fallback else round(record.decision.holdout * 1e6)
    return -share if record.decision.state == "holdout" else share


async def cell_ids(connection: AsyncConnection, cells: Iterable[CellKey]) -> dict[CellKey, int]:
    """Return the number of each cell, giving one to those that have none."""
    wanted = sorted(set(cells))
    columns = [getattr(Cell, name) for name in CELL_COLUMNS]
    numbers: dict[CellKey, int] = {}
    for start in range(0, len(wanted), _CHUNK):
        chunk = wanted[start : start + _CHUNK]
        keys = [tuple(getattr(cell, name) for name in CELL_COLUMNS) for cell in chunk]
        known = select(Cell.id, *columns).where(tuple_(*columns).in_(keys))
        numbers |= {CellKey(*row[1:]): row[0] for row in await connection.execute(known)}
        rows = [asdict(cell) for cell in chunk if cell not in numbers]
        if rows:  # an attempt to insert uses up a number, even where the cell is there
            await connection.execute(insert_for(connection, Cell).on_conflict_do_nothing(), rows)
            numbers |= {CellKey(*row[1:]): row[0] for row in await connection.execute(known)}
    return numbers


async def merge_latencies(
    connection: AsyncConnection,
    fresh: Mapping[LatencyKey, LogHistogram],
    numbers: Mapping[CellKey, int],
    *,
    writer: str,
) -> None:
    """Merge histograms into this writer's rows. No other process changes these, so reading before writing is safe."""
    wanted: dict[tuple[int, int, str], LogHistogram] = {
        (minute, numbers[cell], metric): histogram for (minute, cell, metric), histogram in fresh.items()
    }
    read, write = _latency_statements(connection.dialect)
    for minute in sorted({minute for minute, _, _ in wanted}):
        cells: Any = sorted({cell_id for at, cell_id, _ in wanted if at == minute})
        if connection.dialect.name != "postgresql":
            cells = msgspec.json.encode(cells).decode()
        stored: Any = await connection.exec_driver_sql(read, (writer, minute, cells))
        for cell_id, metric, packed in stored:
            histogram = wanted.get((minute, cell_id, metric))
            if histogram is not None:
                histogram.merge(LogHistogram.decode(packed))
    rows = [
        (minute, cell_id, metric, writer, histogram.encode())
        for (minute, cell_id, metric), histogram in sorted(wanted.items(), key=itemgetter(0))
    ]
    if rows:
        await connection.exec_driver_sql(write, rows)


async def add_activity(
    connection: AsyncConnection,
    fresh: Mapping[ActivityKey, Mapping[str, int]],
    numbers: Mapping[CellKey, int],
) -> None:
    """Add sums to the shared rows, in key order so that gateways never wait for each other in a circle."""
    rows: list[tuple[Any, ...]] = [
        (minute, numbers[cell], key_id, draw, *map(sums.__getitem__, SUMS))
        for (minute, cell, key_id, draw), sums in fresh.items()
    ]
    rows.sort(key=lambda row: row[: len(_ACTIVITY_KEY)])
    if rows:
        await connection.exec_driver_sql(_activity_statement(connection.dialect), rows)


@lru_cache(maxsize=8)
def _activity_statement(dialect: Dialect) -> str:
    """Return the statement that adds; its parameters are the key's columns and `SUMS`, in order."""
    insert = insert_of(dialect.name, ActivityMinute)
    added = {name: getattr(ActivityMinute, name) + insert.excluded[name] for name in SUMS}
    names = (*_ACTIVITY_KEY, *SUMS)
    return _compiled(insert.on_conflict_do_update(index_elements=_ACTIVITY_KEY, set_=added), names, dialect)


@lru_cache(maxsize=8)
def _latency_statements(dialect: Dialect) -> tuple[str, str]:
    """Return the statement that reads a minute's rows of some cells, and the one that replaces rows."""
    insert = insert_of(dialect.name, LatencyMinute)
    replace = {"histogram": insert.excluded.histogram}
    names = (*_LATENCY_KEY, "histogram")
    write = _compiled(insert.on_conflict_do_update(index_elements=_LATENCY_KEY, set_=replace), names, dialect)
    read = "SELECT cell_id, metric, histogram FROM latency_minutes WHERE "
    if dialect.name == "postgresql":
        read += "writer = $1 AND minute = $2 AND cell_id = ANY($3::BIGINT[])"
    else:
        read += "writer = ? AND minute = ? AND cell_id IN (SELECT value FROM json_each(?))"
    return read, write


def _compiled(statement: Any, names: Sequence[str], dialect: Dialect) -> str:  # noqa: ANN401  # either dialect's Insert
    """Return a statement's text: a builder takes a hundred times as long as the database, batch after batch."""
    compiled = statement.compile(dialect=dialect)
    if tuple(compiled.positiontup or ()) != tuple(names):
        raise AssertionError(f"parameters in another order than expected: {compiled.positiontup}")
    return str(compiled)


def _is_screened(record: RequestRecord) -> bool:
    return record.status != 200 or record.is_error or record.fallback or record.loop or record.warm_up


def _microseconds(seconds: float | None) -> int:
    return round(min(max(seconds or 0.0, 0.0), _LONGEST_S) * 1e6)


def _sums_of(record: RequestRecord) -> dict[str, int]:
    sums = {
        "requests": 1,
        "failed": int(record.status != 200),
        "errors": int(record.is_error),
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
        sums |= _accelerator_sums(record.spec, tokens)
    return sums | _spec_sums(record)


def _accelerator_sums(spec: Spec | None, tokens: int) -> dict[str, int]:
    """Return a request's share of the accelerator: the time of its steps over the sequences that shared them."""
    if spec is None or spec.plain_s is None or not spec.batch_mean:
        return {}
    steps_s = (spec.draft_s or 0.0) + (spec.verify_s or 0.0) + spec.plain_s
    time_us = _microseconds(steps_s / spec.batch_mean)
    units = time_us // _TIME_UNIT_US
    sums = {"accelerator_tokens": tokens, "accelerator_us": time_us}
    return sums | {"tokens_accelerator": tokens * units, "accelerator_accelerator": units * units}


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
