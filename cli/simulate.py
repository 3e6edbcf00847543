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
FLEET_ONLY = ("gateways", "rate", "sample", "day_s", "busy")
NOT_FLEET = ("policy", "batch", "requests_per_task", "seeds")


@click.command()
@click.option("--traces", type=FILE, help="Acceptance traces, one JSON request a line.")
@click.option("--costs", type=FILE, help="Costs of steps and drafts, YAML, seconds.")
@click.option("--policy", type=FILE, help="Policy whose thresholds hold (default: the built-in ones).")
@click.option("--method", help="Which method's lists of the traces to use.")
@click.option("--draft-lengths", default="2,4,8", show_default=True, callback=_lengths, help="The k beside 0.")
@click.option("--batch", default=1, show_default=True, type=click.IntRange(1, 65536), help="Running sequences.")
@click.option("--requests-per-task", default=300, show_default=True, type=click.IntRange(1, 1_000_000))
@click.option("--seeds", default=20, show_default=True, type=click.IntRange(1, 10_000), help="How many, from 0 on.")
@click.option("--cap", default=1024, show_default=True, type=click.IntRange(1, 1 << 20), help="Longest output, tokens.")
@click.option("--workers", type=click.IntRange(1, 256), help="Processes (default: one per core).")
@click.option("--fleet", is_flag=True, help="A day of open-loop traffic over many gateways and servers instead.")
@click.option("--gateways", type=click.IntRange(1, 1000), help="With --fleet (default: 8).")
@click.option("--rate", type=click.FloatRange(1.0, 1e6), help="With --fleet: requests a second at the peak (10000).")
@click.option("--sample", type=click.FloatRange(1.0, 1e6), help="With --fleet: simulate one request in so many (50).")
@click.option("--day", "day_s", type=click.FloatRange(10.0, 86400.0), help="With --fleet: seconds of the day (180).")
@click.option("--busy", type=click.FloatRange(0.05, 2.0), help="With --fleet: the servers' load at the peak (0.95).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def simulate(  # click's keyword options
    context: click.Context,
    /,
    *,
    as_json: bool,
    workers: int | None,
    fleet: bool,
    **options: Any,  # noqa: ANN401
) -> None:
    """Replay traces through the live decision and compare it with fixed choices, oracles and naive control."""
    if fleet:
        _simulate_fleet(context, options, as_json=as_json, workers=workers)
        return
    for name in ("traces", "costs", "method"):
        if options[name] is None:
            raise click.UsageError(f"Missing option '--{name}'.", context)
    for name in FLEET_ONLY:
        if options.pop(name) is not None:
            raise click.UsageError(f"'--{name.removesuffix('_s')}' needs '--fleet'.", context)
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


def _simulate_fleet(context: click.Context, options: dict[str, Any], *, as_json: bool, workers: int | None) -> None:
    """Run `--fleet`: requests and costs are made up where no files are given."""
    from cli.simulation.errors import InputError
    from cli.simulation.fleet.report import render_fleet, simulate_fleet

    given = click.core.ParameterSource.COMMANDLINE
    for name in NOT_FLEET:
        if context.get_parameter_source(name) == given:
            raise click.UsageError(f"'--{name.replace('_', '-')}' has no meaning with '--fleet'.", context)
    if (options["traces"] or options["costs"]) and not options["method"]:
        raise click.UsageError("Missing option '--method'.", context)
    options["method"] = options["method"] or "draft_model"
    if context.get_parameter_source("draft_lengths") != given:
        options["draft_lengths"] = (4,)
    try:
        result = simulate_fleet(options, workers=workers)
    except InputError as error:
        raise click.ClickException(str(error)) from error
    click.echo(json.dumps(result) if as_json else render_fleet(result))
