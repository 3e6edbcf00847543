"""Reading policies for the commands of this package: findings go where a person sees them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from gateway.policy import Policy


def default_policy() -> Path:
    """Return the file that `BREAKEVEN_POLICY` names, else the shipped one. Raises ClickException."""
    from gateway.errors import SettingsError
    from gateway.settings import Settings

    try:
        return Settings.from_env().policy.path
    except SettingsError as error:
        raise click.ClickException(str(error)) from error


def read_policy(path: Path) -> Policy:
    """Return a checked policy. Prints findings and exits with 1 where there are errors."""
    from gateway.errors import PolicyError
    from gateway.policy import load_policy

    try:
        return load_policy(path)
    except PolicyError as error:
        for line in error.diagnostics:
            click.echo(line, err=True)
        raise SystemExit(1) from error
