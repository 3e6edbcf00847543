"""`breakeven models fetch | list`: the built-in model on this machine's disk. Needs no torch unless it converts."""

from __future__ import annotations

import sys

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from engine.errors import ModelError
from engine.models import store

FOLDER_OPTION = click.option(
    "--models-dir",
    envvar="BREAKEVEN_MODELS_DIR",
    type=click.Path(file_okay=False),
    help="Where models are kept [default: the user's cache folder].",
)


@click.group()
def models() -> None:
    """Fetch and list the models that need no configuration."""


@models.command()
@FOLDER_OPTION
@click.argument("name", default=next(iter(store.BUILT_IN)))
def fetch(name: str, models_dir: str | None) -> None:
    """Fetch the built-in model, convert it, and repair what is damaged."""
    if name not in store.BUILT_IN:
        raise click.BadParameter(f"expected one of {', '.join(store.BUILT_IN)}", param_hint="NAME")
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    try:
        with Progress(*columns, console=console) as bar:
            task = bar.add_task(name, total=None)

            def progress(done: int, total: int) -> None:
                what = name if done < total else f"{name}: unpacking"
                bar.update(task, completed=done, total=total, description=what)

            folder = store.prepare(name, models_dir, progress, repair=True)
            bar.remove_task(task)
    except ModelError as error:
        click.echo(f"breakeven models fetch: {error}", err=True)
        sys.exit(1)
    click.echo(f"{name} is ready in {folder}")


@models.command("list")
@FOLDER_OPTION
def list_models(models_dir: str | None) -> None:
    """List the built-in models with their state and size on disk."""
    for model in store.stored(models_dir):
        click.echo(f"{model.name}  {model.state}  {model.size / 1e6:.0f} MB  {model.folder}")
