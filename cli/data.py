"""`breakeven data`: records of one application or end user, read out or erased; the sums behind reports."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cli.storage import actor, on_database, storage_options

if TYPE_CHECKING:
    from gateway.db import Database, Subject


@click.group()
def data() -> None:
    """Export or erase the records of one application or end user; print the sums behind reports."""


@data.command()
@click.option("--key", "key_id", help="An API key's id.")
@click.option("--end-user", help="An end user as clients name them (safety_identifier or user).")
@click.option("--output", "-o", type=click.Path(path_type=Path, dir_okay=False), help="A file instead of the terminal.")
@storage_options
def export(
    key_id: str | None, end_user: str | None, output: Path | None, data_dir: Path | None, database_url: str | None
) -> None:
    """Print everything kept of one subject, one JSON object a line: requests, then prompts that rules keep."""
    subject = _subject(key_id, end_user, data_dir)
    found = on_database(lambda database: _collect(database, subject, output), data_dir, database_url, migrate=False)
    click.echo(f"{found} records", err=True)


@data.command()
@click.option("--key", "key_id", help="An API key's id.")
@click.option("--end-user", help="An end user as clients name them (safety_identifier or user).")
@click.option("--yes", is_flag=True, help="Do not ask.")
@storage_options
def erase(key_id: str | None, end_user: str | None, yes: bool, data_dir: Path | None, database_url: str | None) -> None:
    """Delete everything kept of one subject; what a gateway has not written yet is erased by asking again."""
    subject = _subject(key_id, end_user, data_dir)
    if not yes:
        click.confirm("This cannot be undone. Erase?", abort=True)
    gone = on_database(lambda database: database.erase(subject, actor=actor()), data_dir, database_url, migrate=False)
    click.echo(f"{gone.requests} requests and {gone.texts} texts erased, {gone.rollups} roll-up rows made anonymous")


@data.command()
@click.option("--since", default="7d", show_default=True, help="Window: a number with s, m, h, d or w.")
@storage_options
def sums(since: str, data_dir: Path | None, database_url: str | None) -> None:
    """Print what reports are worked out from, packed or not: one JSON object a line for each cell, key and draw."""
    from gateway.errors import InvalidRequest
    from gateway.ops.window import parse_window

    try:
        window = parse_window(since)
    except InvalidRequest as error:
        raise click.BadParameter(error.message.removeprefix("since: "), param_hint="--since") from error
    on_database(lambda database: _print_sums(database, time.time() - window), data_dir, database_url, migrate=False)


async def _print_sums(database: Database, since: float) -> None:
    import msgspec

    for key, summed in (await database.window(since)).sums.by(lambda key: key).items():
        row = msgspec.structs.asdict(key.cell) | {"key_id": key.key_id, "draw": key.draw}
        click.echo(msgspec.json.encode(row | msgspec.structs.asdict(summed)).decode())


def _subject(key_id: str | None, end_user: str | None, data_dir: Path | None) -> Subject:
    """Return whose records are meant; an end user is found by the keyed hash under which requests are kept.

    Raises ClickException where the key of that hash is not known.
    """
    from gateway.db import Subject
    from gateway.errors import SettingsError
    from gateway.fingerprint import hashed_user, secret_of
    from gateway.settings import Settings

    if bool(key_id) == bool(end_user):
        raise click.UsageError("name whose records: either --key or --end-user")
    if key_id:
        return Subject(key_id=key_id)
    try:
        server = Settings.from_env(data_dir=data_dir).server
    except SettingsError as error:
        raise click.ClickException(str(error)) from error
    if server.secret:
        return Subject(end_user=hashed_user(str(end_user), secret_of(server.secret)))
    path = server.data_dir / "secret"
    try:
        secret = path.read_bytes()
    except OSError as error:
        message = f"{path}: {error.strerror}; without the gateway's secret nobody can tell which records are whose"
        raise click.ClickException(message) from error
    return Subject(end_user=hashed_user(str(end_user), secret))


async def _collect(database: Database, subject: Subject, output: Path | None) -> int:
    import msgspec

    count = 0
    with click.open_file(str(output or "-"), "w", encoding="utf-8") as out:
        async for row in database.records_of(subject):
            click.echo(msgspec.json.encode(_readable(row)).decode(), file=out)
            count += 1
    return count


def _readable(row: dict[str, Any]) -> dict[str, Any]:
    """Show kept prompts and answers as what they are instead of as text in text."""
    import msgspec

    return row | {
        name: msgspec.json.decode(row[name])
        for name in ("prompt", "completion", "decision", "spec", "signals")
        if isinstance(row.get(name), str)
    }
