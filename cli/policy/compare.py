"""`breakeven policy diff`: what changes in meaning between two policies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cli.policy.files import read_policy
from cli.policy.lifecycle import Versions
from cli.policy.remote import remote_options
from cli.storage import storage_options

if TYPE_CHECKING:
    from gateway.policy import Policy


@click.command()
@click.argument("old")
@click.argument("new")
@click.option("--json", "as_json", is_flag=True, help="A list of changes.")
@click.option("--exit-code", is_flag=True, help="Exit 1 where there are differences.")
@remote_options
@storage_options
def diff(  # noqa: PLR0917  # click passes by name
    old: str,
    new: str,
    as_json: bool,
    exit_code: bool,
    url: str | None,
    api_key: str | None,
    data_dir: Path | None,
    database_url: str | None,
) -> None:
    """Show what changes in meaning from OLD to NEW; layout and comments do not count.

    Each is a file or, with --url or --data-dir, a version's hash (its beginning will do) or "current".
    """
    import msgspec

    from gateway.policy.diff import diff as differences

    kept = Versions(url, api_key, data_dir, database_url) if url or data_dir or database_url else None
    changes = differences(_policy(old, kept), _policy(new, kept))
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(changes), indent=1))
    else:
        for change in changes:
            click.echo(str(change))
        if not changes:
            click.echo("no difference in meaning")
    if exit_code and changes:
        raise SystemExit(1)


def _policy(name: str, kept: Versions | None) -> Policy:
    """Return a policy from a file or from the versions kept. Raises ClickException."""
    from gateway.errors import PolicyError
    from gateway.policy import parse_policy

    if kept is None or Path(name).exists():
        return read_policy(Path(name))
    wanted = kept.in_force() if name == "current" else name
    if wanted is None:
        raise click.ClickException("no policy was put into force yet")
    hash, _, text = kept.version(wanted)
    try:
        return parse_policy(text, f"version {hash}")
    except PolicyError as error:
        raise click.ClickException(str(error)) from error
