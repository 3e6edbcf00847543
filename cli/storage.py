"""What `breakeven keys`, `db` and others share: finding the database and running one asynchronous job on it."""

from __future__ import annotations

import asyncio
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
    """Run a job on the database, made and migrated where needed. Raises ClickException with a reason."""
    from gateway.db import Database
    from gateway.errors import BreakevenError
    from gateway.settings import Settings

    async def run() -> T:
        settings = Settings.from_env(data_dir=data_dir, database_url=database_url)
        if not settings.stores.database_url:
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
