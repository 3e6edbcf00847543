"""`breakeven db`: the database's schema and size, and the texts that policies keep. `serve` migrates by itself."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cli.storage import actor, on_database, storage_options

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


@db.command()
@click.option("--since", default="7d", show_default=True, help="Age at most: a number with s, m, h, d or w.")
@click.option("--task", help="Only requests taken for this task.")
@click.option("--rule", help="Only those under this rule.")
@click.option("--key", "key_id", help="Only those of this API key (its id).")
@click.option("--limit", type=click.IntRange(1, 100_000), default=1000, show_default=True, help="The newest so many.")
@storage_options
def texts(  # noqa: PLR0917  # given by name
    since: str,
    task: str | None,
    rule: str | None,
    key_id: str | None,
    limit: int,
    data_dir: Path | None,
    database_url: str | None,
) -> None:
    """Print prompts and answers that rules keep (`store` in a policy), one JSON object a line, oldest first."""
    import msgspec

    from gateway.policy import units

    try:
        begin = max(0.0, time.time() - units.duration(since))
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--since") from error
    found = on_database(
        lambda database: database.texts(begin, task=task, rule=rule, key_id=key_id, limit=limit),
        data_dir,
        database_url,
    )
    for row in found:
        values = msgspec.to_builtins(row)
        values |= {name: msgspec.json.decode(values[name]) for name in ("prompt", "completion")}
        click.echo(msgspec.json.encode(values).decode())


@db.command()
@click.option("--key", "key_id", help="Those of this API key (its id).")
@click.option("--rule", help="Those kept under this rule.")
@click.option("--request", "request_id", help="That of this request.")
@click.option("--all", "everything", is_flag=True, help="All of them.")
@storage_options
def forget(  # noqa: PLR0917  # given by name
    key_id: str | None,
    rule: str | None,
    request_id: str | None,
    everything: bool,
    data_dir: Path | None,
    database_url: str | None,
) -> None:
    """Delete kept prompts and answers before their time; noted in the audit log."""
    if everything == any((key_id, rule, request_id)):
        raise click.UsageError("name what to forget by --key, --rule or --request, or say --all")
    deleted = on_database(
        lambda database: database.forget_texts(actor=actor(), key_id=key_id, rule=rule, request_id=request_id),
        data_dir,
        database_url,
    )
    click.echo(f"{deleted} texts deleted")


async def _url(database: Database) -> str:
    return database.url
