"""`breakeven policy`: check, explain, try out, compare, activate and take back policies."""

from __future__ import annotations

from pathlib import Path

import click

from cli.policy.check import check, schema
from cli.policy.compare import diff
from cli.policy.expect import test
from cli.policy.explain import explain
from cli.policy.lifecycle import apply, history, rollback
from cli.policy.simulate import simulate
from cli.storage import storage_options


@click.group()
@storage_options
@click.pass_context
def policy(context: click.Context, data_dir: Path | None, database_url: str | None) -> None:
    """Check, explain, try out, compare, activate and take back policies."""
    context.obj = (data_dir, database_url)


for command in (check, explain, test, simulate, diff, apply, history, rollback, schema):
    policy.add_command(command)
