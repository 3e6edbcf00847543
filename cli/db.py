"""`breakeven db`: the database's schema and size. `serve` migrates by itself; in a cluster run `migrate` once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from cli.storage import on_database, storage_options

if TYPE_CHECKING:
    from gateway.db import Database


@click.group()
def db() -> None:
    """Migrate, check and tidy the database."""


@db.command()
@storage_options
def migrate(data_dir: Path | None, database_url: str | None) -> None:
    """Create or upgrade the schema; safe to run from several machines at once."""
    url = on_database(_url, data_dir, database_url)
    click.echo(f"{url} is up to date")


@db.command()
@storage_options
def check(data_dir: Path | None, database_url: str | None) -> None:
    """Tell whether the database answers and its schema is the one this version needs; exit status 1 where not."""
    missing = on_database(lambda database: database.pending_migrations(), data_dir, database_url, migrate=False)
    if missing:
        raise click.ClickException(f"revisions not applied: {', '.join(missing)}; run `breakeven db migrate`")
    click.echo("the database answers and its schema is current")


@db.command()
@click.option("--keep-days", type=click.FloatRange(0), default=30.0, show_default=True, help="Age of raw rows at most.")
@storage_options
def tidy(keep_days: float, data_dir: Path | None, database_url: str | None) -> None:
    """Delete old request rows and compact roll-ups now; running gateways do so every quarter of an hour."""
    deleted = on_database(lambda database: database.maintain(keep_requests_days=keep_days), data_dir, database_url)
    click.echo(f"{deleted} request rows deleted")


async def _url(database: Database) -> str:
    return database.url
