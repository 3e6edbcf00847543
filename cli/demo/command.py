"""The command `breakeven demo`: options, progress bar, exit codes. Everything else is in its neighbours."""

from __future__ import annotations

import asyncio
import json

import aiohttp
import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from cli.demo.client import Client, DemoError, normalize_url
from cli.demo.figures import rows_of, total_row
from cli.demo.render import print_text, to_json
from cli.demo.runner import Outcome, Runner
from cli.demo.workload import interleave, load_prompts

_BUDGET_S = 270.0
"""The demo promises to end within five minutes; the slowest group may overrun this."""


def _levels(_context: click.Context, _parameter: click.Parameter, value: str) -> list[int]:
    """Read `1,4`. Raises click.BadParameter."""
    try:
        levels = [int(part) for part in value.split(",")]
    except ValueError:
        levels = []
    if not levels or any(not 1 <= level <= 64 for level in levels):
        raise click.BadParameter(f"{value!r}: expected numbers from 1 to 64 with commas between them, such as 1,4")
    return levels


@click.command()
@click.option("--url", default="http://127.0.0.1:8000", envvar="BREAKEVEN_URL", show_default=True, help="The gateway.")
@click.option("--api-key", envvar="BREAKEVEN_API_KEY", help="An operator's key, where the gateway asks for one.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
@click.option(
    "--concurrency",
    default="1,4",
    callback=_levels,
    show_default=True,
    help="Requests at a time, one run after the other.",
)
@click.option(
    "--prompts", "per_task", default=6, type=click.IntRange(1, 6), show_default=True, help="Prompts per task."
)
@click.option(
    "--max-tokens", default=48, type=click.IntRange(2, 4096), show_default=True, help="Tokens per answer at most."
)
@click.option("--arm", help="Force this speculative arm (such as engine/ngram-k4) instead of the gateway's choice.")
@click.option(
    "--budget",
    default=_BUDGET_S,
    type=click.FloatRange(5, 36000),
    show_default=True,
    help="Seconds after which no new group starts.",
)
def demo(
    *,
    url: str,
    api_key: str | None,
    as_json: bool,
    concurrency: list[int],
    per_task: int,
    max_tokens: int,
    arm: str | None,
    budget: float,
) -> None:
    """Send a mixed workload on both paths and show what speculation gained and cost."""
    prompts = interleave(load_prompts(), per_task)
    try:
        outcome = asyncio.run(
            _run(
                url=normalize_url(url),
                api_key=api_key,
                per_task=per_task,
                concurrency=concurrency,
                max_tokens=max_tokens,
                arm=arm,
                budget=budget,
            )
        )
    except DemoError as error:
        raise click.ClickException(str(error)) from error
    except KeyboardInterrupt:
        raise click.Abort from None
    rows, total = rows_of(outcome, dict.fromkeys(p.task for p in prompts)), total_row(outcome)
    if as_json:
        click.echo(json.dumps(to_json(outcome, rows, total), ensure_ascii=False))
    else:
        print_text(outcome, rows, total)
    if len(outcome.errors) > len(outcome.pairs):
        told = f"{len(outcome.errors)} requests failed, {len(outcome.pairs)} pairs were measured"
        raise click.ClickException(f"{told}; the last failure: {outcome.errors[-1]}")


async def _run(
    *,
    url: str,
    api_key: str | None,
    per_task: int,
    concurrency: list[int],
    max_tokens: int,
    arm: str | None,
    budget: float,
) -> Outcome:
    """Run the workload with a progress bar on standard error."""
    timeout = aiohttp.ClientTimeout(total=None, connect=10, sock_connect=10, sock_read=120)
    bar = Progress(
        TextColumn("{task.description:<28}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
    # Compression would make the client wait for whole blocks, and keep-alive reuse is what applications do.
    async with aiohttp.ClientSession(
        timeout=timeout, auto_decompress=False, headers={"accept-encoding": "identity"}
    ) as session:
        client = Client(session, url, api_key)
        with bar:
            line = bar.add_task("waiting for the model", total=None)
            model = await client.model()
            runner = Runner(
                client,
                model,
                max_tokens=max_tokens,
                budget_s=budget,
                arm=arm,
                progress=lambda done, total, label: bar.update(line, completed=done, total=total, description=label),
            )
            return await runner.run(interleave(load_prompts(), per_task), concurrency)
