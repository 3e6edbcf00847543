"""`breakeven distill generate`: the target's answers to prompts by task, with its hidden states, resumable."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cli.distill.options import FILE, engine_config, model_options, work_option

if TYPE_CHECKING:
    from cli.distill.prompts import Prompt
    from engine.config import EngineConfig
    from engine.distill.generate import Wish


JUDGED_AT = (0.0, 0.8)
"""Temperatures of the answers to held-out prompts; weights are chosen by greedy ones."""


@click.command()
@work_option
@click.option("--prompts", "files", multiple=True, type=FILE, help="JSON lines; repeatable.")
@click.option("--held-out", "judges", multiple=True, type=FILE, help="Prompts to judge by, never trained on.")
@click.option("--language", "languages", multiple=True, help="Only rows of this `language`; repeatable.")
@click.option("--documents", type=FILE, help="Texts that prompts name by `document`.")
@click.option(
    "--held-out-share",
    default=0.05,
    show_default=True,
    type=click.FloatRange(0, 0.4),
    help="Share of the prompts' families that choose the weights, never trained on; without --held-out as many judge.",
)
@click.option(
    "--temperature",
    "temperatures",
    multiple=True,
    type=click.FloatRange(0, 2),
    default=(0.0, 0.8, 0.4, 1.0),
    show_default=True,
    help="Of the first, second, … answer to each prompt that is trained on; repeatable.",
)
@click.option("--max-tokens", default=160, show_default=True, type=click.IntRange(2), help="Longest answer.")
@click.option(
    "--max-prompt", default=512, show_default=True, type=click.IntRange(1), help="Longer prompts are left out."
)
@click.option("--batch", default=48, show_default=True, type=click.IntRange(1, 1024), help="Answers decoded together.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="For temperatures above 0.")
@model_options
def generate(  # noqa: PLR0917 - click's keyword options
    work: Path,
    files: tuple[Path, ...],
    judges: tuple[Path, ...],
    languages: tuple[str, ...],
    documents: Path | None,
    held_out_share: float,
    temperatures: tuple[float, ...],
    max_tokens: int,
    max_prompt: int,
    batch: int,
    seed: int,
    **model: Any,  # noqa: ANN401 - EngineConfig's fields
) -> None:
    """Let the target answer prompts, and keep answers and hidden states in --work for training.

    A line of --prompts is a request as `breakeven classify` takes it, with an `id` and optionally a `task` (else it is
    classified) and a `family` (prompts of one family are held out together). Runs of the same command go on where the
    last one ended. A line that is no prompt is reported, the others are answered, and the exit code is 1.
    """
    config = engine_config(max_batch=batch, **model)
    from cli.distill.prompts import PromptReader, in_turns
    from engine.errors import EngineError

    reader = PromptReader(share=held_out_share, documents=documents, languages=languages)
    prompts = [prompt for path in judges for prompt in reader.read(path, held_out=True)]
    prompts += in_turns([prompt for path in files for prompt in reader.read(path)])
    for fault in reader.faults:
        click.echo(fault, err=True)
    if not prompts:
        raise click.UsageError("expected at least one prompt from --prompts or --held-out, found none")
    recipe = {"max_tokens": max_tokens, "seed": seed}
    try:
        _run(config, work, prompts, temperatures, max_prompt, batch, recipe)
    except EngineError as error:
        raise click.ClickException(str(error)) from error
    if reader.faults:
        raise SystemExit(1)


def _run(  # noqa: PLR0917 - called once
    config: EngineConfig,
    work: Path,
    prompts: Sequence[Prompt],
    temperatures: Sequence[float],
    max_prompt: int,
    batch: int,
    recipe: dict[str, int],
) -> None:
    import torch
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from engine.distill.corpus import Corpus
    from engine.distill.generate import Generator, recipe_of
    from engine.models.load import load_model

    torch.set_num_threads(config.num_threads)
    target = load_model(config.model, config)
    corpus = Corpus(work, recipe_of(target, **recipe))
    wishes = _wishes(prompts, temperatures, target, max_prompt)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    there = {f"{entry.id}#{entry.sample}" for entry in corpus.entries()}
    tokens = sum(entry.total - entry.prompt for entry in corpus.entries())
    with Progress(*columns, console=Console(stderr=True, soft_wrap=True), speed_estimate_period=600) as bar:
        done = sum(wish.key in there for wish in wishes)
        task = bar.add_task(f"{tokens:,} tokens", total=len(wishes), completed=done)

        def advance(answers: int, count: int) -> None:
            nonlocal tokens
            tokens += count
            bar.update(task, advance=answers, description=f"{tokens:,} tokens")
            if not bar.console.is_terminal:
                bar.console.print(f"{tokens:,} tokens")

        Generator(target, corpus, batch=batch).run(wishes, advance)
    click.echo(f"{work}: {len(corpus.entries()):,} answers, {tokens:,} output tokens")


def _wishes(
    prompts: Sequence[Prompt],
    temperatures: Sequence[float],
    target: Any,  # noqa: ANN401 - LoadedModel, whose import loads torch
    max_prompt: int,
) -> list[Wish]:
    """Those to judge and choose by, then an answer to every prompt per temperature: a run cut short has seen all."""
    from engine.distill.generate import Wish
    from engine.tokenizer import ChatTokenizer

    tokenizer = ChatTokenizer(target)
    told = []
    for prompt in prompts:
        body = prompt.body
        ids = tokenizer.render(body["messages"]) if "messages" in body else tokenizer.encode(body["prompt"])
        if len(ids) <= max_prompt:
            told.append((prompt, ids))
    return [
        Wish(prompt.id, sample, prompt.task, prompt.split, temperature, ids)
        for split, drawn in (("held-out", JUDGED_AT), ("choose", JUDGED_AT[:1]), ("train", temperatures))
        for sample, temperature in enumerate(drawn)
        for prompt, ids in told
        if prompt.split == split
    ]
