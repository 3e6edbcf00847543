"""Options that several commands of `breakeven distill` share, and what is set before torch is imported."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from engine.config import DEFAULT_MODEL, ConfigError, EngineConfig, default_threads

F = TypeVar("F", bound=Callable[..., Any])
FILE = click.Path(dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)

work_option = click.option(
    "--work", required=True, type=FOLDER, help="Folder of the target's generations; made by `distill generate`."
)


def model_options(command: F) -> F:
    """Add the options that say which target runs, and where."""
    command = click.option("--threads", type=int, default=default_threads(), show_default=True, help="torch threads.")(
        command
    )
    command = click.option(
        "--device", envvar="BREAKEVEN_DEVICE", default="auto", show_default=True, help="auto, cpu, cuda, …"
    )(command)
    command = click.option(
        "--dtype", envvar="BREAKEVEN_DTYPE", default="auto", show_default=True, help="auto, float32 or bfloat16."
    )(command)
    command = click.option("--models-dir", envvar="BREAKEVEN_MODELS_DIR", help="Where fetched models are kept.")(
        command
    )
    return click.option("--model", envvar="BREAKEVEN_MODEL", default=DEFAULT_MODEL, show_default=True)(command)


def engine_config(**options: Any) -> EngineConfig:  # noqa: ANN401 - EngineConfig's fields
    """Return the checked options, and tell torch's threads to sleep while they wait. Raises UsageError."""
    try:
        config = EngineConfig(**options)
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch is imported
    os.environ.setdefault("OMP_NUM_THREADS", str(config.num_threads))
    return config
