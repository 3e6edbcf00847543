"""`breakeven policy apply`, `history`, `rollback`: by a running gateway, or by the database that gateways watch."""

from __future__ import annotations

import getpass
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import click

from cli.policy.files import read_policy
from cli.policy.remote import Remote, remote_options
from cli.storage import on_database, storage_options

if TYPE_CHECKING:
    from gateway.db import Activation, Database

T = TypeVar("T")


class Versions:
    """Where versions are kept: behind a gateway, or in a database."""

    def __init__(self, url: str | None, api_key: str | None, data_dir: Path | None, database_url: str | None) -> None:
        if url is not None and (data_dir is not None or database_url is not None):
            raise click.UsageError("--url excludes --data-dir and --database-url")
        self._remote = Remote(url, api_key) if url is not None else None
        outer = click.get_current_context().find_object(tuple) or (None, None)
        self._where = (data_dir or outer[0], database_url or outer[1])

    def in_force(self) -> str | None:
        """Return the hash of the policy in force; None where none was ever recorded."""
        if self._remote is not None:
            return self._remote.call("GET", "/v1/policy").etag
        latest = self._run(lambda database: database.latest_activation())
        return latest.hash if latest else None

    def history(self, limit: int) -> list[Activation]:
        """Return activations, newest first."""
        import msgspec

        from gateway.db import Activation

        if self._remote is not None:
            raw = self._remote.call("GET", "/v1/policy/versions").body
            return msgspec.json.decode(raw, type=list[Activation])[:limit]
        return self._run(lambda database: database.policy_history(limit=limit))

    def version(self, hash: str) -> tuple[str, str, str]:
        """Return (hash, name, text) of a version. Raises ClickException."""
        if self._remote is not None:
            found = self._remote.call("GET", f"/v1/policy/versions/{quote(hash, safe='')}").json()
            return found["hash"], found["name"], found["text"]
        stored = self._run(lambda database: database.policy_text(hash))
        if stored is None:
            raise click.ClickException(f"no policy version {hash!r}; see `breakeven policy history`")
        return stored

    def activate(self, version: tuple[str, str, str], origin: str, reason: str, expected: str | None) -> Activation:
        """Put a text into force where `expected` still is (None: any). Raises ClickException."""
        import msgspec

        from gateway.db import Activation

        hash, name, text = version
        if self._remote is not None:
            body: dict[str, Any] = {"text": text, "name": name, "reason": reason}
            path, method = "/v1/policy", "PUT"
            if origin == "rollback":
                body, path, method = {"hash": hash, "reason": reason}, "/v1/policy/rollback", "POST"
            raw = self._remote.call(method, path, body, if_match=expected or "*").body
            return msgspec.json.decode(raw, type=Activation)
        made = self._run(
            lambda database: database.activate_policy(
                hash, name, text, actor=_actor(), origin=origin, reason=reason, expected=expected
            )
        )
        if made is None:
            raise click.ClickException(f"another policy than {expected} is in force; see `breakeven policy history`")
        return made

    def _run(self, ask: Callable[[Database], Awaitable[T]]) -> T:
        return on_database(ask, *self._where)


def kept_policy(data_dir: Path | None, database_url: str | None) -> tuple[str, str, str] | None:
    """Return (hash, name, text) of the policy in force in a database; None where none was named or it has none."""
    outer = click.get_current_context().find_object(tuple) or ()
    if data_dir is None and database_url is None and not any(outer):
        return None
    versions = Versions(None, None, data_dir, database_url)
    hash = versions.in_force()
    return None if hash is None else versions.version(hash)


def _actor() -> str:
    try:
        return f"cli:{getpass.getuser()}"
    except (OSError, KeyError):
        return "cli"


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--reason", default="", help="Why; kept in the history.")
@click.option("--if-match", metavar="HASH", help="Only if this policy is in force; else: if none comes between.")
@click.option("--force", is_flag=True, help="Whatever is in force.")
@remote_options
@storage_options
def apply(  # noqa: PLR0917  # click passes by name
    file: Path,
    reason: str,
    if_match: str | None,
    force: bool,
    url: str | None,
    api_key: str | None,
    data_dir: Path | None,
    database_url: str | None,
) -> None:
    """Put the policy in FILE into force on all gateways; running requests end under the one they began with.

    With --url through a running gateway, which checks it as well; else through the database of --data-dir, which
    running gateways follow within 2 seconds and later ones at their start.
    """
    policy = read_policy(file)
    for line in policy.warnings:
        click.echo(line, err=True)
    versions = Versions(url, api_key, data_dir, database_url)
    expected = None if force else if_match or versions.in_force()
    made = versions.activate((policy.hash, str(file), policy.text), "api", reason, expected)
    _told(made, expected)


@click.command()
@click.argument("hash", required=False)
@click.option("--reason", default="", help="Why; kept in the history.")
@remote_options
@storage_options
def rollback(  # noqa: PLR0917  # click passes by name
    hash: str | None,
    reason: str,
    url: str | None,
    api_key: str | None,
    data_dir: Path | None,
    database_url: str | None,
) -> None:
    """Put an earlier policy into force again: the one before the present, or version HASH (its beginning will do)."""
    versions = Versions(url, api_key, data_dir, database_url)
    history = versions.history(200)
    expected = history[0].hash if history else None
    if hash is None:
        hash = next((entry.hash for entry in history if entry.hash != expected), None)
        if hash is None:
            raise click.ClickException("there is no earlier policy to go back to")
    made = versions.activate(versions.version(hash), "rollback", reason, expected)
    _told(made, expected)


def _told(made: Activation, before: str | None) -> None:
    if made.hash == before:
        click.echo(f"policy {made.hash} is in force already (activation {made.id})")
    else:
        click.echo(f"policy {made.hash} in force (activation {made.id}), {before or 'none'} before")


@click.command()
@click.option("--limit", type=click.IntRange(1, 200), default=20, show_default=True)
@click.option("--show", metavar="HASH", help="Print this version's text instead.")
@click.option("--json", "as_json", is_flag=True, help="One JSON array.")
@remote_options
@storage_options
def history(  # noqa: PLR0917  # click passes by name
    limit: int,
    show: str | None,
    as_json: bool,
    url: str | None,
    api_key: str | None,
    data_dir: Path | None,
    database_url: str | None,
) -> None:
    """Show which policies were in force: since when, through whom and why. The first one is in force now."""
    import msgspec

    versions = Versions(url, api_key, data_dir, database_url)
    if show is not None:
        click.echo(versions.version(show)[2], nl=False)
        return
    found = versions.history(limit)
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(found), ensure_ascii=False))
        return
    rows = [("SINCE", "HASH", "ORIGIN", "WHO", "NAME", "REASON")]
    rows += [
        (f"{entry.at:%Y-%m-%d %H:%M:%S}", entry.hash, entry.origin, entry.actor, entry.name, entry.reason)
        for entry in found
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
