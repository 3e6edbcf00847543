"""`breakeven distill export`: a standalone draft as a model folder that transformers, llama.cpp and vLLM load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from cli.distill.options import FILE, FOLDER, engine_config, model_options


@click.command()
@click.argument("folder", type=FOLDER)
@click.option("--draft", type=FILE, help="A file of `distill train` [default: the one that comes with the model].")
@click.option("--gguf", type=FILE, help="The target's GGUF: write FOLDER/draft.gguf for llama.cpp besides.")
@model_options
def export(folder: Path, draft: Path | None, gguf: Path | None, **model: Any) -> None:  # noqa: ANN401 - EngineConfig's
    """Write a standalone draft, made whole with the target's embedding and output matrix, to FOLDER.

    The folder is in Hugging Face's layout: `breakeven engine --draft-model FOLDER`, transformers, llama.cpp's converter
    and vLLM (as speculative draft model) read it. With --gguf no converter is needed for llama.cpp.
    """
    config = engine_config(**model)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise click.UsageError(f"FOLDER: expected a new or an empty folder, got {folder}")
    from engine.distill import standalone
    from engine.distill.gguf_file import write_gguf
    from engine.distill.learners import shipped_draft
    from engine.errors import EngineError
    from engine.models.load import load_model

    try:
        target = load_model(config.model, config)
        path = draft or shipped_draft(target.name)
        if gguf is not None:  # first, since it can be refused
            write_gguf(path, target, gguf, folder / "draft.gguf")
        standalone.export(path, target, folder)
    except EngineError as error:
        raise click.ClickException(str(error)) from error
    size = sum(path.stat().st_size for path in folder.iterdir())
    click.echo(f"{folder}: draft of {target.name}, {size / 1e6:.0f} MB")
