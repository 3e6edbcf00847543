"""`breakeven record-traces`: acceptance traces for `breakeven simulate`, made with the engine's own drafters."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from engine.config import DEFAULT_MODEL, ConfigError, EngineConfig, default_threads

FILE = click.Path(dir_okay=False, path_type=Path)


@click.command("record-traces")
@click.option("--prompts", required=True, type=FILE, help="Requests to answer, one JSON object a line.")
@click.option("--out", required=True, type=FILE, help="Trace file; what it already holds is not recorded again.")
@click.option("--model", envvar="BREAKEVEN_MODEL", default=DEFAULT_MODEL, show_default=True)
@click.option("--draft-model", envvar="BREAKEVEN_DRAFT_MODEL", help="Adds the method draft_model.")
@click.option("--models-dir", envvar="BREAKEVEN_MODELS_DIR", help="Where fetched models are kept.")
@click.option("--dtype", envvar="BREAKEVEN_DTYPE", default="auto", show_default=True, help="auto, float32 or bfloat16.")
@click.option("--device", envvar="BREAKEVEN_DEVICE", default="auto", show_default=True, help="auto, cpu, cuda, …")
@click.option("--threads", type=int, default=default_threads(), show_default=True, help="torch threads.")
@click.option("--batch", default=8, show_default=True, type=click.IntRange(1, 1024), help="Requests decoded together.")
@click.option("--max-tokens", default=256, show_default=True, type=click.IntRange(1), help="Longest output.")
@click.option("--method", "methods", multiple=True, help="Drafter to record; repeatable [default: all there are].")
@click.option(
    "--max-draft",
    "--cut",
    "max_draft",
    default=16,
    show_default=True,
    type=click.IntRange(1, 64),
    help="Where drafts are cut.",
)
@click.option("--temperature", default=0.0, show_default=True, type=click.FloatRange(0, 2), help="0 is greedy.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="For --temperature above 0.")
@click.option("--messages/--no-messages", default=False, show_default=True, help="Keep the messages in the traces.")
def record_traces(  # noqa: PLR0917 - click's keyword options
    prompts: Path,
    out: Path,
    batch: int,
    max_tokens: int,
    methods: tuple[str, ...],
    max_draft: int,
    temperature: float,
    seed: int,
    messages: bool,
    **model: Any,  # noqa: ANN401 - EngineConfig's fields
) -> None:
    """Answer prompts with the engine's model and record what each drafter would have had accepted.

    A line of --prompts holds `id`, one of `messages`, `turns` (the user's turns) and `prompt`, and optionally `task`
    (else the prompt is classified), `tools`, `response_format` and `prediction`. A prompt that cannot be recorded is
    reported by file and line, the others are recorded, and the exit code is 1.
    """
    if temperature > 0 and model["draft_model"] is not None:
        raise click.UsageError(
            "--temperature: expected 0 with --draft-model: a finished answer does not say which sampled drafts hold"
        )
    try:
        config = EngineConfig(max_batch=batch, max_k=max_draft, **model)
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch is imported
    os.environ.setdefault("OMP_NUM_THREADS", str(config.num_threads))
    from cli.recording.run import Settings

    if _record(prompts, out, config, Settings(batch, max_tokens, methods, max_draft, temperature, seed, messages)):
        raise SystemExit(1)


def _record(path: Path, out: Path, config: EngineConfig, settings: Any) -> int:  # noqa: ANN401 - Settings, imported late
    """Record all prompts under a progress bar; return how many could not be."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from cli.recording.prompts import read_prompts
    from cli.recording.run import Recording
    from cli.recording.store import TraceFile
    from engine.errors import EngineError
    from gateway.classify import Classifier
    from gateway.errors import ArtefactError

    try:
        prompts, faults = read_prompts(path, Classifier.load())
    except ArtefactError as error:
        raise click.ClickException(str(error)) from error
    for fault in faults:
        click.echo(fault, err=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    try:
        recording = Recording(config, settings)
        with (
            TraceFile(out, recording.origin, recording.methods) as file,
            Progress(*columns, console=Console(stderr=True, soft_wrap=True)) as bar,
        ):
            task = bar.add_task("recording", total=len(prompts))

            def report(message: str) -> None:
                faults.append(message)
                bar.console.print(message, markup=False, highlight=False)

            recording.run(prompts, file, advance=lambda count: bar.advance(task, count), fault=report)
    except EngineError as error:
        raise click.ClickException(str(error)) from error
    return len(faults)
