"""`breakeven policy`: check, explain, try out, compare, activate and take back policies."""

from __future__ import annotations

import click

from cli.policy.check import check, schema
from cli.policy.compare import diff
from cli.policy.expect import test
from cli.policy.explain import explain
from cli.policy.lifecycle import apply, history, rollback


@click.group()
def policy() -> None:
    """Check, explain, try out, compare, activate and take back policies."""


for command in (check, explain, test, diff, apply, history, rollback, schema):
    policy.add_command(command)
