"""What `breakeven keys`, `db` and others share: finding the database and running one asynchronous job on it."""

from __future__ import annotations

import asyncio
import getpass
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from gateway.db import Database

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


def storage_options(command: F) -> F:
    """Add `--data-dir` and `--database-url` to a command or group."""
    folder = click.Path(path_type=Path, file_okay=False)
    command = click.option("--database-url", help="BREAKEVEN_DATABASE_URL; default SQLite in the data folder.")(command)
    return click.option("--data-dir", type=folder, help="BREAKEVEN_DATA_DIR; default .breakeven.")(command)


def on_database(
    job: Callable[[Database], Awaitable[T]], data_dir: Path | None, database_url: str | None, *, migrate: bool = True
) -> T:
    """Run a job on the database, made and migrated where needed; without `migrate` it must be there already.

    Raises ClickException with a reason.
    """
    from gateway.db import Database
    from gateway.errors import BreakevenError
    from gateway.settings import Settings

    async def run() -> T:
        settings = Settings.from_env(data_dir=data_dir, database_url=database_url)
        if not migrate:
            demand_file(settings.database_url)
        elif not settings.stores.database_url:
            settings.server.data_dir.mkdir(parents=True, exist_ok=True)
        database = Database(settings.database_url, timeout_s=10.0)
        try:
            if migrate:
                await database.migrate()
            return await job(database)
        finally:
            await database.aclose()

    try:
        return asyncio.run(run())
    except (BreakevenError, OSError) as error:
        raise click.ClickException(str(error)) from error


def actor() -> str:
    """Return who is to stand in the audit log."""
    try:
        return f"cli:{getpass.getuser()}"
    except (OSError, KeyError):
        return "cli"


def demand_file(url: str) -> None:
    """Looking must not leave traces: SQLite makes an empty file where there is none. Raises StoreUnavailable."""
    from gateway.db.engine import parse_url
    from gateway.errors import StoreUnavailable

    parsed = parse_url(url)
    path = parsed.database if parsed.drivername.startswith("sqlite") else None
    if path and path != ":memory:" and not Path(path).exists():
        raise StoreUnavailable(f"there is no database {path} yet: serve something first, or give --data-dir")
