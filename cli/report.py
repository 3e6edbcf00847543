"""`breakeven report`: what speculation gained, by task, from the database. Works while nothing is being served."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import click

from cli.storage import demand_file

FORMS = ("text", "json", "csv", "html", "pdf")


@click.command()
@click.option("--data-dir", type=click.Path(path_type=Path, file_okay=False), help="Where `serve` keeps its files.")
@click.option("--database-url", help="Another database (BREAKEVEN_DATABASE_URL).")
@click.option("--since", default="7d", show_default=True, help="Window: a number with s, m, h, d or w.")
@click.option("--format", "form", type=click.Choice(FORMS), default="text", show_default=True)
@click.option("--output", "-o", type=click.Path(path_type=Path, dir_okay=False), help="A file instead of the terminal.")
def report(data_dir: Path | None, database_url: str | None, since: str, form: str, output: Path | None) -> None:
    """Report what speculation gained and cost, by task and application, against the randomised holdout."""
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
        made = asyncio.run(_report(settings.database_url, window, form))
        if output is not None:
            output.write_bytes(made)
        elif form == "pdf" and sys.stdout.isatty():
            raise click.UsageError("a PDF is no text for a terminal: name a file with --output")
        else:
            click.echo(made, nl=form == "json")
    except OSError as error:
        raise click.ClickException(f"--output {output}: {error.strerror}") from error
    except (SettingsError, StoreUnavailable) as error:
        raise click.ClickException(str(error)) from error


async def _report(url: str, window_s: float, form: str) -> bytes:
    """Read and render. Raises StoreUnavailable where the database does not answer or was never used."""
    from gateway.db import Database
    from gateway.errors import StoreUnavailable
    from gateway.ops import render
    from gateway.ops.collect import OpsReader

    database = Database(url, timeout_s=30.0)
    try:
        await database.ping()
        report = await OpsReader(database, patience_s=120.0).report(window_s, study=True)
    finally:
        await database.aclose()
    if report.study is None:
        raise StoreUnavailable(report.source)
    if form == "json":
        return render.to_json(report)
    if form == "pdf":
        return render.to_pdf(report)
    if form == "csv":
        return render.to_csv(report).encode()
    return (render.to_page(report, standalone=True) if form == "html" else render.to_text(report)).encode()
