"""Alembic's environment: uses the connection that `Database.migrate` passes, else opens BREAKEVEN_DATABASE_URL itself.

`alembic revision --autogenerate -m "…"` from the repository's root works on a SQLite file under BREAKEVEN_DATA_DIR.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any, Literal

from alembic import context
from alembic.autogenerate.api import AutogenContext
from sqlalchemy import Connection

from gateway.db.engine import open_engine, parse_url
from gateway.db.models import Base


def render_item(kind: str, item: Any, autogen: AutogenContext) -> str | Literal[False]:  # noqa: ANN401 — Alembic's signature
    """Write our own column types into revisions by name."""
    if kind == "type" and type(item).__module__ == "gateway.db.types":
        autogen.imports.add("from gateway.db import types")
        return f"types.{item!r}"
    return False


def run(connection: Connection) -> None:
    """Migrate on this connection; SQLite needs tables copied for most changes (batch mode)."""
    context.configure(
        connection=connection, target_metadata=Base.metadata, render_as_batch=True, compare_type=True,
        render_item=render_item,
    )  # fmt: skip
    with context.begin_transaction():
        context.run_migrations()


async def run_alone() -> None:
    """Open the database ourselves: the `alembic` command."""
    folder = os.environ.get("BREAKEVEN_DATA_DIR", ".breakeven")
    url = os.environ.get("BREAKEVEN_DATABASE_URL") or f"sqlite:///{folder}/breakeven.db"
    engine = open_engine(parse_url(url), timeout_s=60.0)
    async with engine.connect() as connection:
        await connection.execution_options(breakeven_write=True)
        async with connection.begin():
            await connection.run_sync(run)
    await engine.dispose()


given = context.config.attributes.get("connection")
if given is not None:
    run(given)
else:
    asyncio.run(run_alone())
