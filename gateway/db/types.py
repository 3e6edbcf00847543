"""Column types that behave the same on SQLite and PostgreSQL. Called by `models.py` and the migrations."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, DateTime, Dialect, Integer
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.types import TypeDecorator, TypeEngine

JsonValue = JSON().with_variant(JSONB(), "postgresql")
"""JSON text on SQLite, JSONB on PostgreSQL."""

BigId = BigInteger().with_variant(Integer(), "sqlite")
"""A 64-bit key that numbers itself; SQLite does that for INTEGER only, which has 64 bits there."""


class UtcDateTime(TypeDecorator[datetime]):
    """An aware time in UTC: `timestamptz` on PostgreSQL, UTC without offset on SQLite; read back as aware UTC."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Pick the column type."""
        return dialect.type_descriptor(DateTime(timezone=dialect.name != "sqlite"))

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Convert to UTC. Raises ValueError for a naive time: its zone would be a guess."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"expected a time with a zone: {value!r}")
        utc = value.astimezone(UTC)
        return utc.replace(tzinfo=None) if dialect.name == "sqlite" else utc

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002 — SQLAlchemy's signature
        """Return aware UTC."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def utc(unix: float) -> datetime:
    """Return a Unix time as aware UTC."""
    return datetime.fromtimestamp(unix, UTC)
