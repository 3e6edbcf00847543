"""Entry point of `breakeven`: a lazy group, so that `breakeven keys` never imports torch."""

from __future__ import annotations

import importlib

import click

COMMANDS = {
    "serve": "cli.serve:serve",
    "gateway": "cli.gateway:gateway",
    "engine": "cli.engine:engine",
    "models": "cli.models:models",
    "demo": "cli.demo:demo",
    "keys": "cli.keys:keys",
    "db": "cli.db:db",
    "data": "cli.data:data",
    "policy": "cli.policy:policy",
    "backends": "cli.backends:backends",
    "report": "cli.report:report",
    "classify": "cli.classify:classify",
    "classifier": "cli.classifier:classifier",
    "simulate": "cli.simulate:simulate",
    "distill": "cli.distill:distill",
    "record-traces": "cli.record_traces:record_traces",
}
"""Command name → `module:attribute` of its click command."""


class LazyGroup(click.Group):
    """Imports a command's module only when that command runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's signature)
        """Return all command names in the order in which a newcomer meets them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 (click's signature)
        """Import and return the command, or None where the name is unknown."""
        target = COMMANDS.get(cmd_name)
        if target is None:
            return None
        module, _, attribute = target.partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command


@click.command(cls=LazyGroup)
@click.version_option(package_name="breakeven")
def main() -> None:
    """Breakeven: an LLM gateway that knows when to turn speculative decoding off."""


if __name__ == "__main__":
    main()
