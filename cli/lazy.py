"""Command groups that import a command's module only when that command runs: `breakeven keys` never imports torch."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click


class LazyGroup(click.Group):
    """A group whose commands are named by `module:attribute`, in the order in which a newcomer meets them."""

    def __init__(self, *args: Any, targets: Mapping[str, str], **kwargs: Any) -> None:  # noqa: ANN401 (click's own)
        super().__init__(*args, **kwargs)
        self._targets = targets

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's signature)
        """Return all command names."""
        return list(self._targets)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 (click's signature)
        """Import and return the command, or None where the name is unknown."""
        target = self._targets.get(cmd_name)
        if target is None:
            return None
        module, _, attribute = target.partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command
