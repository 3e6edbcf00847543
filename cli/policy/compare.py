"""`breakeven policy diff`: what changes in meaning between two policies."""

from __future__ import annotations

import json
from pathlib import Path

import click

from cli.policy.files import read_policy


@click.command()
@click.argument("old", type=click.Path(path_type=Path))
@click.argument("new", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="A list of changes.")
@click.option("--exit-code", is_flag=True, help="Exit 1 where there are differences.")
def diff(old: Path, new: Path, as_json: bool, exit_code: bool) -> None:
    """Show what changes in meaning from OLD to NEW; layout and comments do not count."""
    import msgspec

    from gateway.policy.diff import diff as differences

    changes = differences(read_policy(old), read_policy(new))
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(changes), indent=1))
    else:
        for change in changes:
            click.echo(str(change))
        if not changes:
            click.echo("no difference in meaning")
    if exit_code and changes:
        raise SystemExit(1)
