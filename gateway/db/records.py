"""Request records → rows. Called by `Database.insert_records`."""

from __future__ import annotations

from typing import Any, TypeVar, cast

import msgspec
from sqlalchemy import Insert
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.db.models import Base, Request
from gateway.db.types import utc
from gateway.types import RequestRecord

T = TypeVar("T")
_PLAIN = frozenset((int, float, bool, type(None)))
_CHUNK = 400
"""Rows per statement: below SQLite's limit of 32,766 parameters."""


def insert_for(connection: AsyncConnection, table: type[Base]) -> postgresql.Insert | sqlite.Insert:
    """Return the dialect's INSERT, which knows ON CONFLICT."""
    if connection.dialect.name == "postgresql":
        return postgresql.insert(table)
    return sqlite.insert(table)


async def insert_new(connection: AsyncConnection, records: list[RequestRecord]) -> set[str]:
    """Insert those records whose request_id is not there yet, and return their ids."""
    rows = {record.request_id: row_of(record) for record in records}
    values = [clean(row) for row in rows.values()]
    statement: Insert = insert_for(connection, Request).on_conflict_do_nothing().returning(Request.request_id)
    fresh: set[str] = set()
    for start in range(0, len(values), _CHUNK):
        fresh.update((await connection.execute(statement, values[start : start + _CHUNK])).scalars())
    return fresh


def row_of(record: RequestRecord) -> dict[str, Any]:
    """Return the columns of one record."""
    decision, spec = record.decision, record.spec
    same = {name: getattr(record, name) for name in _SAME_NAMES}
    return same | {
        "at": utc(record.at),
        "backend": record.arm.backend,
        "method": record.arm.method,
        "k": record.arm.k,
        **{name: getattr(decision, name) for name in _DECISION_NAMES},
        "rounds": spec.rounds if spec else None,
        "drafted": spec.drafted if spec else None,
        "accepted": spec.accepted if spec else None,
        "zero_rounds": (spec.histogram[0] if spec.histogram else None) if spec else None,
        "decision": {
            "arm": str(decision.arm),
            "numbers": msgspec.to_builtins(decision.numbers),
            "vetoes": decision.vetoes,
            "speculation": msgspec.to_builtins(decision.speculation),
            "plain_s": decision.plain_s,
        },
        "spec": msgspec.to_builtins(spec) if spec else None,
        "signals": msgspec.to_builtins(record.signals),
    }


_SAME_NAMES = (
    "request_id", "endpoint", "model", "key_id", "end_user", "task", "confidence", "source", "epoch", "stream",
    "temperature", "status", "error_code", "finish_reason", "prompt_tokens", "completion_tokens", "cached_tokens",
    "overhead_s", "ttft_s", "tpot_s", "e2e_s", "fallback", "loop", "conversation",
)  # fmt: skip
_DECISION_NAMES = ("load", "rule", "policy", "state", "reason", "propensity", "incumbent")


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
