"""`breakeven simulate`: what the decision would have been worth on recorded acceptance traces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click


def _lengths(_context: click.Context, _parameter: click.Parameter, value: str) -> tuple[int, ...]:
    try:
        lengths = tuple(sorted({int(part) for part in value.split(",")} - {0}))
    except ValueError as error:
        raise click.BadParameter("expected whole numbers with commas between them, such as 2,4,8") from error
    if not lengths or min(lengths) < 1 or max(lengths) > 64:
        raise click.BadParameter("expected one or more draft lengths from 1 to 64, such as 2,4,8")
    return lengths


FILE = click.Path(path_type=Path)


@click.command()
@click.option("--traces", required=True, type=FILE, help="Acceptance traces, one JSON request a line.")
@click.option("--costs", required=True, type=FILE, help="Costs of steps and drafts, YAML, seconds.")
@click.option("--policy", type=FILE, help="Policy whose thresholds hold (default: the built-in ones).")
@click.option("--method", required=True, help="Which method's lists of the traces to use.")
@click.option("--draft-lengths", default="2,4,8", show_default=True, callback=_lengths, help="The k beside 0.")
@click.option("--batch", default=1, show_default=True, type=click.IntRange(1, 65536), help="Running sequences.")
@click.option("--requests-per-task", default=300, show_default=True, type=click.IntRange(1, 1_000_000))
@click.option("--seeds", default=20, show_default=True, type=click.IntRange(1, 10_000), help="How many, from 0 on.")
@click.option("--cap", default=1024, show_default=True, type=click.IntRange(1, 1 << 20), help="Longest output, tokens.")
@click.option("--workers", type=click.IntRange(1, 256), help="Processes (default: one per core).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def simulate(*, as_json: bool, workers: int | None, **options: Any) -> None:  # noqa: ANN401 - click's keyword options
    """Replay traces through the live decision and compare it with fixed choices, oracles and naive control."""
    from cli.simulation.errors import InputError
    from cli.simulation.report import render
    from cli.simulation.settings import plan_of
    from gateway.errors import PolicyError

    try:
        plan, settings = plan_of(options)
    except (InputError, PolicyError) as error:
        raise click.ClickException(str(error)) from error
    from cli.simulation.run import simulate as run

    result = {"settings": settings, **run(plan, workers=workers)}
    click.echo(json.dumps(result) if as_json else render(result))
