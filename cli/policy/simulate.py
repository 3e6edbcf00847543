"""`breakeven policy simulate`: what a change of policy would have meant for time, p99 and paths."""

from __future__ import annotations

import json
import time
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import click

from cli.policy.files import read_policy
from cli.storage import on_database, storage_options

if TYPE_CHECKING:
    from cli.policy.replay import Workload
    from gateway.policy import Policy

FILE = click.Path(path_type=Path)


@click.command()
@click.argument("old", type=FILE)
@click.argument("new", type=FILE)
@click.option("--traces", type=FILE, help="Acceptance traces, one JSON request a line; else recorded requests.")
@click.option("--costs", required=True, type=FILE, help="Costs of steps and drafts, YAML, as for breakeven simulate.")
@click.option("--method", default="ngram", show_default=True, help="Which drafts: ngram, suffix, draft_model, eagle.")
@click.option("--since", default="7d", show_default=True, help="How far back recorded requests are taken.")
@click.option("--batch", default=1, show_default=True, type=click.IntRange(1, 65536), help="Running sequences.")
@click.option("--requests-per-task", default=300, show_default=True, type=click.IntRange(1, 1_000_000))
@click.option("--seeds", default=5, show_default=True, type=click.IntRange(1, 1000), help="How many sequences.")
@click.option("--cap", default=1024, show_default=True, type=click.IntRange(1, 1 << 20), help="Longest output, tokens.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@storage_options
def simulate(  # noqa: PLR0917  # click passes by name
    old: Path,
    new: Path,
    traces: Path | None,
    costs: Path,
    method: str,
    since: str,
    batch: int,
    requests_per_task: int,
    seeds: int,
    cap: int,
    as_json: bool,
    data_dir: Path | None,
    database_url: str | None,
) -> None:
    """Replay the same requests under the policies OLD and NEW and show the difference.

    Decides with the live code. Requests come from --traces, or from the records of --data-dir; a recorded request
    supports drafts up to the recorded length only. Holdout and p99 guard are off.
    """
    from cli.policy.whatif import Setup, compare, lengths_of, replay
    from cli.simulation.costs import read_costs
    from cli.simulation.errors import InputError

    policies = [read_policy(old), read_policy(new)]
    lengths = tuple(sorted(set().union(*(lengths_of(policy, method) for policy in policies))))
    if not lengths:
        raise click.ClickException(f"neither policy has an arm of method {method!r}")
    try:
        model = read_costs(costs, method, batch)
        if traces is not None:
            workload = _from_file(traces, method, cap, batch)
        else:
            workload = _from_records(method, cap, lengths[-1], since, (data_dir, database_url))
    except InputError as error:
        raise click.ClickException(str(error)) from error
    setup = Setup(workload, model, method, lengths, cap, requests_per_task, seeds)
    before, after = (replay(policy, setup) for policy in policies)
    notes = workload.notes + _unoffered(policies, method)
    result = {"old": before, "new": after, "change": compare(before, after), "notes": notes, "draft_lengths": lengths}
    click.echo(json.dumps(result) if as_json else to_text(result))


def _from_file(path: Path, method: str, cap: int, batch: int) -> Workload:
    from cli.policy.replay import from_file

    return from_file(path, method, cap, batch)


def _from_records(method: str, cap: int, longest: int, since: str, where: tuple[Path | None, str | None]) -> Workload:
    """Read recorded requests. Raises ClickException where there are none of this method."""
    from cli.policy.replay import from_records
    from gateway.policy import units

    try:
        window = units.duration(since)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--since") from error
    begin = time.time() - window
    records = on_database(lambda database: database.replays(begin), *where)
    workload = from_records(records, method, cap, longest)
    if not workload.traces:
        raise click.ClickException(
            f"no recorded request since {since} drafted with {method}; serve some, or give --traces"
        )
    return workload


def _unoffered(policies: list[Policy], method: str) -> list[str]:
    from cli.policy.whatif import lengths_of

    return [f"{policy.name} has no arm of method {method}" for policy in policies if not lengths_of(policy, method)]


def to_text(result: dict[str, Any]) -> str:
    """Return the comparison as a table."""
    old, new, change = result["old"], result["new"], result["change"]
    rows: list[tuple[str, ...]] = [("", "OLD", "NEW", "CHANGE", "SD OVER SEEDS")]
    shown = (
        ("time (plain = 1)", "relative_time", "{:.4f}", "{:+.2%}"),
        ("p99, ms a token", "p99_s_per_token", "{:.3f}", "{:+.2%}"),
        ("speculative share", "speculative_share", "{:.1%}", "{:+.1%}"),
    )
    for label, key, form, difference in shown:
        scale = 1e3 if key == "p99_s_per_token" else 1.0
        values = [form.format(fmean(side[key]) * scale) for side in (old, new)]
        rows.append((label, *values, difference.format(change[key]["mean"]), f"{change[key]['sd']:.2%}"))
    for side, policy in (("old", old), ("new", new)):
        for name, rule in policy["rules"].items():
            share = f"{rule['speculative_share']:.1%} speculative"
            rows.append(
                (f"{side} rule {name}", f"{rule['requests']:.0f} requests", f"{rule['relative_time']:.4f}", share, "")
            )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([*lines, *(f"note: {note}" for note in result["notes"])])
