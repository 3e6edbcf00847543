"""Entry point of `breakeven`: a lazy group, so that `breakeven keys` never imports torch."""

from __future__ import annotations

import click

from cli.lazy import LazyGroup

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


@click.command(cls=LazyGroup, targets=COMMANDS)
@click.version_option(package_name="breakeven")
def main() -> None:
    """Breakeven: an LLM gateway that knows when to turn speculative decoding off."""


if __name__ == "__main__":
    main()
