"""`breakeven distill …`: makes a draft for a target, judges it on this machine, exports it. Commands load lazily."""

from __future__ import annotations

import importlib

import click

COMMANDS = {
    "generate": "cli.distill.generate:generate",
    "train": "cli.distill.train:train",
    "evaluate": "cli.distill.evaluate:evaluate",
    "export": "cli.distill.export:export",
}
"""Command name → `module:attribute`."""


class _Lazy(click.Group):
    """Imports a command's module only when that command runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's signature)
        """Return the commands in the order in which they are used."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 (click's signature)
        """Import and return the command, or None where the name is unknown."""
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command


@click.group(cls=_Lazy)
def distill() -> None:
    """Make a small draft for a target from the target's own answers, and say whether it pays on this machine."""
