"""`breakeven distill …`: makes a draft for a target, judges it on this machine, exports it. Commands load lazily."""

from __future__ import annotations

import click

from cli.lazy import LazyGroup

COMMANDS = {
    "generate": "cli.distill.generate:generate",
    "train": "cli.distill.train:train",
    "evaluate": "cli.distill.evaluate:evaluate",
    "export": "cli.distill.export:export",
}
"""Command name → `module:attribute`."""


@click.group(cls=LazyGroup, targets=COMMANDS)
def distill() -> None:
    """Make a small draft for a target from the target's own answers, and say whether it pays on this machine."""
