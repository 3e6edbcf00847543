"""Request records → rows. Called by `Database.insert_records`.

Rows go to the driver as plain tuples under one constant statement: with thousands of requests a second, what a
statement builder does per row would cost more than the database.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, TypeVar, cast

import msgspec
from sqlalchemy import JSON, Dialect
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.db.models import Base, Request
from gateway.db.types import utc
from gateway.types import RequestRecord

T = TypeVar("T")
_PLAIN = frozenset((int, float, bool, type(None)))
_encode = msgspec.json.Encoder().encode
_KNOWN = "SELECT request_id FROM requests WHERE request_id IN (SELECT value FROM json_each(?))"


def insert_for(connection: AsyncConnection, table: type[Base]) -> postgresql.Insert | sqlite.Insert:
    """Return the dialect's INSERT, which knows ON CONFLICT."""
    return insert_of(connection.dialect.name, table)


def insert_of(dialect: str, table: type[Base]) -> postgresql.Insert | sqlite.Insert:
    """Return a dialect's INSERT by the dialect's name."""
    return postgresql.insert(table) if dialect == "postgresql" else sqlite.insert(table)


async def insert_new(connection: AsyncConnection, records: Iterable[RequestRecord]) -> list[RequestRecord]:
    """Insert those records whose request_id is not there yet, and return them, the last of each id."""
    rows = {clean(record.request_id): record for record in records}
    if not rows:
        return []
    if connection.dialect.name == "postgresql":
        columns = tuple(map(list, zip(*map(row_of, rows.values()), strict=True)))
        reply = await connection.exec_driver_sql(_arrays_statement(connection.dialect), columns)
        return [rows[request_id] for request_id in reply.scalars()]
    # The transaction holds SQLite's only write lock, so that nobody inserts between these two.
    reply = await connection.exec_driver_sql(_KNOWN, (_encode(list(rows)).decode(),))
    known = set(reply.scalars())
    fresh = [record for request_id, record in rows.items() if request_id not in known]
    if fresh:
        sql = _rows_statement(connection.dialect)
        await connection.exec_driver_sql(sql, [_for_sqlite(row_of(record)) for record in fresh])
    return fresh


def row_of(record: RequestRecord) -> tuple[Any, ...]:
    """Return the columns of one record in the order of `COLUMNS`, documents as JSON text."""
    decision, spec, arm = record.decision, record.spec, record.arm
    words = (
        record.request_id, record.endpoint, record.model, record.key_id, record.end_user, record.task, record.source,
        arm.backend, arm.method, record.epoch, decision.rule, decision.policy, decision.state, decision.reason,
        decision.incumbent, record.error_code or "", record.finish_reason or "", record.conversation,
    )  # fmt: skip
    together = "".join(words)
    if not together.isascii() or "\0" in together:
        words = cast("Any", tuple(map(clean, words)))
    (request_id, endpoint, model, key_id, end_user, task, source, backend, method, epoch, rule, policy, state, reason,
     incumbent, error_code, finish_reason, conversation) = words  # fmt: skip
    about = {
        "arm": str(arm) if decision.arm is arm else str(decision.arm),
        "numbers": decision.numbers,
        "vetoes": decision.vetoes,
        "speculation": decision.speculation,
        "plain_s": decision.plain_s,
        "holdout": decision.holdout,
    }
    return (
        request_id, utc(record.at), endpoint, model, key_id, end_user, task, record.confidence, source, backend, method,
        arm.k, epoch, decision.load, rule, policy, state, reason, decision.propensity, incumbent, record.stream,
        record.temperature, record.status, error_code if record.error_code is not None else None,
        finish_reason if record.finish_reason is not None else None, record.prompt_tokens, record.completion_tokens,
        record.cached_tokens, record.overhead_s, record.ttft_s, record.tpot_s, record.e2e_s,
        spec.rounds if spec else None, spec.drafted if spec else None, spec.accepted if spec else None,
        spec.histogram[0] if spec and spec.histogram else None, record.fallback, record.loop, conversation,
        _document(about), _document(spec), _document(record.signals),
    )  # fmt: skip


COLUMNS = (
    "request_id", "at", "endpoint", "model", "key_id", "end_user", "task", "confidence", "source", "backend", "method",
    "k", "epoch", "load", "rule", "policy", "state", "reason", "propensity", "incumbent", "stream", "temperature",
    "status", "error_code", "finish_reason", "prompt_tokens", "completion_tokens", "cached_tokens", "overhead_s",
    "ttft_s", "tpot_s", "e2e_s", "rounds", "drafted", "accepted", "zero_rounds", "fallback", "loop", "conversation",
    "decision", "spec", "signals",
)  # fmt: skip
"""What `row_of` fills: all columns of `requests`."""
_AT = COLUMNS.index("at")


def _document(value: object) -> str:
    """Return JSON text that every database stores."""
    try:
        text = _encode(value).decode()
    except UnicodeEncodeError:  # half a surrogate pair
        text = "\\u0000"
    return text if "\\u0000" not in text else _encode(clean(msgspec.to_builtins(value))).decode()


def _for_sqlite(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Write the time as SQLAlchemy does on SQLite: UTC without offset."""
    at = row[_AT].replace(tzinfo=None).isoformat(" ", "microseconds")
    return (*row[:_AT], at, *row[_AT + 1 :])


@lru_cache(maxsize=8)
def _rows_statement(dialect: Dialect) -> str:
    names = ", ".join(map(dialect.identifier_preparer.quote, COLUMNS))
    marks = ", ".join("?" * len(COLUMNS))
    return f"INSERT INTO requests ({names}) VALUES ({marks}) ON CONFLICT DO NOTHING"  # noqa: S608  # constants only


@lru_cache(maxsize=8)
def _arrays_statement(dialect: Dialect) -> str:
    """Return PostgreSQL's INSERT of any number of rows, which come as one array per column."""
    table = Request.__table__
    names = [dialect.identifier_preparer.quote(name) for name in COLUMNS]
    shown, arrays = [], []
    for number, name in enumerate(COLUMNS, 1):
        kind = table.c[name].type.compile(dialect)
        is_document = isinstance(table.c[name].type, JSON)
        arrays.append(f"${number}::{'TEXT' if is_document else kind}[]")
        shown.append(f"c{number}::JSONB" if is_document else f"c{number}")
    places = ", ".join(f"c{number}" for number in range(1, len(COLUMNS) + 1))
    return (
        f"INSERT INTO requests ({', '.join(names)}) SELECT {', '.join(shown)} "  # noqa: S608  # constants only
        f"FROM unnest({', '.join(arrays)}) AS given({places}) ON CONFLICT DO NOTHING RETURNING request_id"
    )


def clean(value: T) -> T:
    """Make text storable everywhere: PostgreSQL knows no NUL, and neither database half a surrogate pair."""
    cleaned: Any = value
    kind = type(value)
    if kind is str:
        if not cleaned.isascii():
            cleaned = cleaned.encode("utf-8", "replace").decode()
        if "\0" in cleaned:
            cleaned = cleaned.replace("\0", "\ufffd")
    elif kind is dict:
        cleaned = {clean(name): item if type(item) in _PLAIN else clean(item) for name, item in cleaned.items()}
    elif kind is list:
        cleaned = [item if type(item) in _PLAIN else clean(item) for item in cleaned]
    return cast("T", cleaned)
