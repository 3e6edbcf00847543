"""`breakeven keys`: API keys of applications and operators. Once one exists, every request needs one."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cli.storage import on_database, storage_options

if TYPE_CHECKING:
    from gateway.db import StoredKey

_PRINTABLE = re.compile(r"[^\x00-\x1f\x7f]{0,100}")


@click.group()
@storage_options
@click.pass_context
def keys(context: click.Context, data_dir: Path | None, database_url: str | None) -> None:
    """Create, list and revoke API keys."""
    context.obj = (data_dir, database_url)


@keys.command()
@click.option("--role", type=click.Choice(["app", "operator"]), required=True, help="Operators may see /ops.")
@click.option("--name", default="", help="What the key is for.")
@click.option("--rpm", type=click.IntRange(1, 10**9), help="Requests per minute at most.")
@click.option("--tpm", type=click.IntRange(1, 10**12), help="Tokens per minute at most.")
@click.option(
    "--may-force/--may-not-force", default=None, help="Obey x-breakeven-path and -arm (default: operators only)."
)
@storage_options
@click.pass_context
def create(  # noqa: PLR0917  # click passes by name
    context: click.Context,
    role: str,
    name: str,
    rpm: int | None,
    tpm: int | None,
    may_force: bool | None,
    data_dir: Path | None,
    database_url: str | None,
) -> None:
    """Make a key and print it: only its hash is kept, so this is the one time it can be seen."""
    from gateway.db import new_key

    if not _PRINTABLE.fullmatch(name):
        raise click.BadParameter("expected up to 100 printable characters", param_hint="--name")
    stored, token = new_key(
        "operator" if role == "operator" else "app",
        name,
        created_at=datetime.now(UTC),
        may_force=may_force,
        requests_per_minute=rpm,
        tokens_per_minute=tpm,
    )
    where = _where(context, data_dir, database_url)
    on_database(lambda database: database.create_key(stored), *where)
    click.echo(f"{role} key {stored.key_id} made; it is not shown again:", err=True)
    click.echo(token)


@keys.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="One JSON array.")
@storage_options
@click.pass_context
def list_keys(context: click.Context, as_json: bool, data_dir: Path | None, database_url: str | None) -> None:
    """Show all keys, revoked ones included; never their secrets."""
    found = on_database(lambda database: database.list_keys(), *_where(context, data_dir, database_url))
    if as_json:
        click.echo(json.dumps([_shown(key) for key in found], ensure_ascii=False))
        return
    rows = [[_cell(value) for value in _shown(key).values()] for key in found]
    heading = ["KEY", "ROLE", "NAME", "RPM", "TPM", "MAY FORCE", "CREATED", "REVOKED"]
    widths = [max(len(row[i]) for row in [heading, *rows]) for i in range(len(heading))]
    for row in [heading, *rows]:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


@keys.command()
@click.argument("key")
@storage_options
@click.pass_context
def revoke(context: click.Context, key: str, data_dir: Path | None, database_url: str | None) -> None:
    """Revoke KEY (its id, the shown prefix, or the whole key); running gateways refuse it within a second or two."""
    match = re.fullmatch(r"(?:bk-)?([0-9a-f]{12})(?:-.*)?", key)
    key_id = match[1] if match else key
    if not on_database(lambda database: database.revoke_key(key_id), *_where(context, data_dir, database_url)):
        raise click.ClickException(f"no valid key {key_id!r}; see `breakeven keys list`")
    click.echo(f"key {key_id} is revoked", err=True)


def _where(context: click.Context, data_dir: Path | None, database_url: str | None) -> tuple[Path | None, str | None]:
    """Options may stand before or after the subcommand."""
    outer = context.obj or (None, None)
    return data_dir or outer[0], database_url or outer[1]


def _shown(key: StoredKey) -> dict[str, object]:
    return {
        "key": key.prefix,
        "role": key.role,
        "name": key.name,
        "requests_per_minute": key.requests_per_minute,
        "tokens_per_minute": key.tokens_per_minute,
        "may_force": key.may_force,
        "created_at": f"{key.created_at:%Y-%m-%dT%H:%M:%SZ}",
        "revoked_at": f"{key.revoked_at:%Y-%m-%dT%H:%M:%SZ}" if key.revoked_at else None,
    }


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else str(value)
