"""`breakeven distill evaluate`: acceptance by task on held-out answers, costs and gain on this machine, advice."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cli.distill.options import FILE, FOLDER, engine_config, model_options

if TYPE_CHECKING:
    from cli.distill.judging import Wish
    from engine.config import EngineConfig


@click.command()
@click.option("--work", "works", required=True, multiple=True, type=FOLDER, help="Generated data; repeatable.")
@click.option("--head", type=FILE, help="A feature-fed head [default: the one that comes with the model].")
@click.option("--draft-model", help="Judge a standalone draft model instead.")
@click.option("--prompt-ids", help="Judge only on held-out prompts whose id begins so.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@click.option("--page", type=FILE, help="Write a page with plots, one file that needs nothing else.")
@click.option("--costs/--no-costs", default=True, show_default=True, help="Time rounds at batch 1 and 8.")
@click.option(
    "--pairs", default=16, show_default=True, type=click.IntRange(0), help="Prompts to time each way; 0: none."
)
@click.option(
    "--tokens", default=48, show_default=True, type=click.IntRange(2), help="Output tokens of a timed prompt."
)
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0))
@model_options
def evaluate(  # noqa: PLR0917 - click's keyword options
    works: tuple[Path, ...],
    head: Path | None,
    draft_model: str | None,
    prompt_ids: str | None,
    as_json: bool,
    page: Path | None,
    costs: bool,
    pairs: int,
    tokens: int,
    seed: int,
    **model: Any,  # noqa: ANN401 - EngineConfig's fields
) -> None:
    """Judge a draft on the held-out answers in --work, and say where it pays on this machine.

    Acceptance is computed from what the answers' generation has kept, so that the target does not run. Costs and gains
    are timed: nothing else should run meanwhile.
    """
    if head is not None and draft_model is not None:
        raise click.UsageError("--head: expected no --draft-model beside it")
    config = engine_config(draft_model=draft_model, draft_head=str(head) if head else "auto", **model)
    from cli.distill.judging import Wish
    from engine.errors import EngineError

    try:
        _run(config, Wish(works, prompt_ids or "", costs, pairs, tokens, seed), as_json=as_json, page=page)
    except EngineError as error:
        raise click.ClickException(str(error)) from error


def _run(config: EngineConfig, wish: Wish, *, as_json: bool, page: Path | None) -> None:
    import msgspec

    from cli.distill.judging import judge
    from cli.distill.page import render
    from cli.distill.text import as_text

    report = judge(config, wish, lambda message: click.echo(message, err=True))
    if page is not None:
        try:
            page.write_text(render(report), encoding="utf-8")
        except OSError as error:
            raise click.ClickException(f"{page}: cannot be written: {error.strerror}") from error
    click.echo(msgspec.json.format(msgspec.json.encode(report)).decode() if as_json else as_text(report))
