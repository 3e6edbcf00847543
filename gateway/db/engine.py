"""Opens SQLite or PostgreSQL for `Database`: URLs, pragmas, time limits, transactions, and the mapping of errors."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from sqlalchemy import URL, Connection, event, make_url
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError, DataError, IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry

from gateway.errors import SettingsError, StoreRefused, StoreUnavailable
from gateway.logs import redact

DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg", "postgres": "postgresql+asyncpg"}


def parse_url(url: str) -> URL:
    """Return the URL with the driver we use. Raises SettingsError."""
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise SettingsError(f"BREAKEVEN_DATABASE_URL: not a database URL: {redact(url)!r}") from error
    dialect = parsed.drivername.partition("+")[0]
    if dialect not in DRIVERS:
        raise SettingsError(f"BREAKEVEN_DATABASE_URL: expected sqlite:/// or postgresql://, got {parsed.drivername}")
    return parsed.set(drivername=DRIVERS[dialect])


def open_engine(url: URL, *, timeout_s: float = 5.0) -> AsyncEngine:
    """Return an engine with few connections and tight limits. Connects on first use."""
    common: dict[str, Any] = {
        "json_serializer": lambda value: msgspec.json.encode(value).decode(),
        "json_deserializer": msgspec.json.decode,
        "hide_parameters": True,  # prompts and keys have no place in tracebacks
    }
    if url.drivername.startswith("sqlite"):
        engine = create_async_engine(url, connect_args={"timeout": timeout_s}, pool_timeout=timeout_s, **common)
        event.listen(engine.sync_engine, "connect", _prepare_sqlite)
        event.listen(engine.sync_engine, "begin", _begin_sqlite)
        return engine
    limits = {"timeout": timeout_s, "command_timeout": timeout_s, "server_settings": {"application_name": "breakeven"}}
    return create_async_engine(
        url, pool_size=3, max_overflow=2, pool_timeout=timeout_s, pool_recycle=1800, connect_args=limits, **common
    )


def _prepare_sqlite(connection: DBAPIConnection, entry: ConnectionPoolEntry) -> None:  # noqa: ARG001 — SQLAlchemy's signature
    """WAL: readers and the one writer do not block each other; a commit survives the process, not the power."""
    connection.isolation_level = None  # transactions are begun by `_begin_sqlite`, not by the driver
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    """Take the write lock at the beginning of a writing transaction: waiting for it later would be a deadlock."""
    writing = connection.get_execution_options().get("breakeven_write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")


@asynccontextmanager
async def transaction(engine: AsyncEngine, *, write: bool, timeout_s: float) -> AsyncIterator[AsyncConnection]:
    """Run one transaction within `timeout_s`; all of a reading one's queries see the same state.

    Raises StoreUnavailable (no answer, no schema, locked) or StoreRefused (a value that the database will never take).
    """
    try:
        async with asyncio.timeout(timeout_s), engine.connect() as connection:
            await connection.execution_options(breakeven_write=write)
            if not write and connection.dialect.name == "postgresql":  # on SQLite that is so by itself
                await connection.execution_options(isolation_level="REPEATABLE READ")
            async with connection.begin():
                yield connection
    except (DataError, IntegrityError) as error:
        raise StoreRefused(f"database: {_first_line(error)}") from error
    except (SQLAlchemyError, OSError, TimeoutError, sqlite3.Error) as error:
        raise StoreUnavailable(f"database: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    text = str(getattr(error, "orig", None) or error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0] if text else 'no answer in time'}"[:300]
