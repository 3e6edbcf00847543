"""`breakeven distill train`: the feature-fed head, from generated data, seeded and resumable."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cli.distill.options import FOLDER, engine_config, model_options

if TYPE_CHECKING:
    from engine.config import EngineConfig
    from engine.distill.train import Settings


@click.command()
@click.option("--work", "works", required=True, multiple=True, type=FOLDER, help="Generated data; repeatable.")
@click.option("--out", required=True, type=FOLDER, help="Where the draft and the checkpoint are written.")
@click.option("--begin-with", type=click.Path(dir_okay=False, path_type=Path), help="A draft to train further.")
@click.option(
    "--kind",
    type=click.Choice(["eagle", "standalone"]),
    default="eagle",
    show_default=True,
    help="A head that reads the target's hidden states, or a draft model of its own.",
)
@click.option("--layers", default=1, show_default=True, type=click.IntRange(1), help="Of a standalone draft.")
@click.option("--epochs", default=8, show_default=True, type=click.IntRange(1))
@click.option("--batch-tokens", default=1024, show_default=True, type=click.IntRange(64), help="Positions in a step.")
@click.option("--lr", default=5e-4, show_default=True, type=click.FloatRange(0, 1, min_open=True), help="At its peak.")
@click.option("--unroll", default=3, show_default=True, type=click.IntRange(1, 8), help="Draft steps that are trained.")
@click.option("--vocab", default=4096, show_default=True, type=click.IntRange(16), help="Tokens that can be drafted.")
@click.option(
    "--hard",
    default=0.5,
    show_default=True,
    type=click.FloatRange(0, 1),
    help="Share of the loss on the target's first choice; the rest follows its distribution.",
)
@click.option("--licence", default="", help="Kept in a head's file, for instance Apache-2.0.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0))
@click.option(
    "--minutes",
    type=click.FloatRange(0, min_open=True),
    help="Train so long, the rate falling to its end; again to go on.",
)
@click.option("--judge-every", default=50, show_default=True, type=click.IntRange(1), help="Steps between judgements.")
@model_options
def train(
    works: tuple[Path, ...],
    out: Path,
    begin_with: Path | None,
    minutes: float | None,
    judge_every: int,
    **options: Any,  # noqa: ANN401 - Settings and EngineConfig
) -> None:
    """Train a draft on what `distill generate` has kept.

    The target does not run. Ctrl-C keeps a checkpoint; the same command goes on from it. What did best on held-out
    answers is in --out: eagle.safetensors, a head for method eagle, or draft.safetensors, to be exported.
    """
    names = ("kind", "layers", "epochs", "batch_tokens", "lr", "unroll", "vocab", "hard", "licence", "seed")
    chosen = {name: options.pop(name) for name in names}
    chosen["begin_with"] = _hash_of(begin_with)
    config = engine_config(**options)
    from engine.distill.train import Settings
    from engine.errors import EngineError

    try:
        out.mkdir(parents=True, exist_ok=True)
        _run(config, works, out, begin_with, Settings(**chosen), minutes, judge_every)
    except EngineError as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        raise click.ClickException(f"{out}: {error.strerror}") from error


def _hash_of(draft: Path | None) -> str | None:
    if draft is None:
        return None
    try:
        return hashlib.sha256(draft.read_bytes()).hexdigest()
    except OSError as error:
        raise click.ClickException(f"--begin-with: {draft}: {error.strerror}") from error


def _run(  # noqa: PLR0917 - called once
    config: EngineConfig,
    works: tuple[Path, ...],
    out: Path,
    begin_with: Path | None,
    settings: Settings,
    minutes: float | None,
    judge_every: int,
) -> None:
    import math

    import torch
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    from engine.distill.corpus import Corpus
    from engine.distill.train import Progress, Trainer
    from engine.models.load import load_model

    torch.set_num_threads(config.num_threads)
    target = load_model(config.model, config)
    trainer = Trainer(target, [Corpus(work) for work in works], out, settings, begin_with)
    click.echo(
        f"{trainer.answer_tokens:,} output tokens; the draft's vocabulary has {trainer.coverage:.1%} of held-out ones"
    )
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True, soft_wrap=True), speed_estimate_period=300) as bar:
        task = bar.add_task("training", total=None)

        def tell(now: Progress) -> None:
            held_out = f", {now.held_out:.3f} tokens a round held out" if now.held_out is not None else ""
            words = f"loss {now.loss:.3f}, top-1 {now.top1:.1%}{held_out}"
            bar.update(task, total=now.steps, completed=now.step, description=words)
            if not bar.console.is_terminal and now.step % 10 == 0:
                bar.console.print(f"{now.step}/{now.steps}: {words}", markup=False, highlight=False)

        try:
            done = trainer.run(tell, judge_every=judge_every, limit_s=minutes * 60 if minutes else math.inf)
        except KeyboardInterrupt:
            trainer.save()
            done = False
    click.echo(
        f"{out}: {'complete' if done else 'stopped; the same command goes on'}, best held-out a {trainer.best:.3f}"
    )
