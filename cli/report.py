"""`breakeven report`: what speculation gained, by task, from the database. Works while nothing is being served."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from cli.storage import demand_file


@click.command()
@click.option("--data-dir", type=click.Path(path_type=Path, file_okay=False), help="Where `serve` keeps its files.")
@click.option("--database-url", help="Another database (BREAKEVEN_DATABASE_URL).")
@click.option("--since", default="7d", show_default=True, help="Window: a number with s, m, h, d or w.")
@click.option("--format", "form", type=click.Choice(["text", "json", "csv", "html"]), default="text", show_default=True)
def report(data_dir: Path | None, database_url: str | None, since: str, form: str) -> None:
    """Report what speculation gained and cost, by task."""
    from gateway.errors import InvalidRequest, SettingsError, StoreUnavailable
    from gateway.ops.window import parse_window
    from gateway.settings import Settings

    try:
        window = parse_window(since)
    except InvalidRequest as error:
        raise click.BadParameter(error.message.removeprefix("since: "), param_hint="--since") from error
    try:
        settings = Settings.from_env(data_dir=data_dir, database_url=database_url)
        demand_file(settings.database_url)
        click.echo(asyncio.run(_report(settings.database_url, window, form)), nl=form == "json")
    except (SettingsError, StoreUnavailable) as error:
        raise click.ClickException(str(error)) from error


async def _report(url: str, window_s: float, form: str) -> str:
    """Read and render. Raises StoreUnavailable where the database does not answer or was never used."""
    from gateway.db import Database
    from gateway.ops import render
    from gateway.ops.collect import OpsReader

    database = Database(url, timeout_s=30.0)
    try:
        await database.ping()
        report = await OpsReader(database, patience_s=120.0).report(window_s)
    finally:
        await database.aclose()
    if form == "json":
        return render.to_json(report).decode()
    if form == "csv":
        return render.to_csv(report)
    return render.to_page(report, standalone=True) if form == "html" else render.to_text(report)
