"""`breakeven classifier train|eval|inspect`: retrain the classifier on your own labels, measure it, look into it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec

from gateway.classify import Classifier
from gateway.classify.artefact import DEFAULT, load_artefact
from gateway.errors import ArtefactError

EXISTING = click.Path(exists=True, path_type=Path)
ARTEFACT = click.option(
    "--artefact", type=EXISTING, default=DEFAULT, help="A trained classifier; by default the shipped one."
)
DATA = click.option(
    "--data",
    type=EXISTING,
    multiple=True,
    required=True,
    help="Labelled requests: JSONL (`task`, and `turns` or `messages`) or a folder with prompts/*.jsonl. Repeatable.",
)


@click.group()
def classifier() -> None:
    """Retrain the task classifier on your own labels, measure it, and look into it."""


@classifier.command()
@DATA
@click.option("--taxonomy", "taxonomy_file", type=EXISTING, help="Tasks in YAML; by default the shipped eight.")
@click.option("--lexicon", "lexicon_file", type=EXISTING, help="Cue words in YAML; by default the shipped ones.")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), required=True, help="Where to write the artefact."
)
@click.option("--version", required=True, help="A name for this version, shown by `inspect`.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print the held-out evaluation as JSON.")
def train(  # noqa: PLR0917 (click passes options by name)
    data: tuple[Path, ...],
    taxonomy_file: Path | None,
    lexicon_file: Path | None,
    out: Path,
    version: str,
    seed: int,
    as_json: bool,
) -> None:
    """Train on labelled requests and write an artefact that a policy may name.

    Figures are of rows whose whole family (`family`, else `author`) was held out. Needs scikit-learn.
    """
    from cli.training.data import load_examples, taxonomy_examples
    from cli.training.evaluate import render
    from cli.training.fit import Options
    from cli.training.run import train as run
    from gateway.classify.artefact import save_artefact
    from gateway.classify.taxonomy import load_taxonomy

    try:
        taxonomy = load_taxonomy(taxonomy_file) if taxonomy_file else load_artefact(DEFAULT).header.taxonomy
        tables = _tables(lexicon_file)
        examples = [example for path in data for example in load_examples(path, taxonomy.names)]
        examples += taxonomy_examples(taxonomy)
        artefact, result = run(examples, taxonomy, tables, Options(seed=seed), version=version, say=_say)
        digest = save_artefact(artefact, out)
    except ArtefactError as error:
        raise click.ClickException(str(error)) from error
    click.echo(msgspec.json.encode(result) if as_json else render(result))
    click.echo(f"{out}: version {version}, sha256 {digest}, {out.stat().st_size} bytes", err=True)


def _say(text: str) -> None:
    click.echo(text, err=True)


def _tables(lexicon: Path | None) -> Any:  # noqa: ANN401 (the type's module needs scipy; loaded on demand)
    from cli.training.run import Tables
    from gateway.classify.lexicon import cue_entries, load_lexicon
    from gateway.classify.tokens import Tokenizer, build_folds

    if lexicon is None:
        base = load_artefact(DEFAULT)
        places = base.cues.nonzero()[0]
        entries = zip(base.vocabulary.keys[places].tolist(), base.cues[places].tolist(), strict=True)
        return Tables(base.folds, dict(entries))
    folds = build_folds()
    return Tables(folds, cue_entries(load_lexicon(lexicon), Tokenizer(folds)))


@classifier.command("eval")
@DATA
@ARTEFACT
@click.option("--json", "as_json", is_flag=True)
def evaluate(data: tuple[Path, ...], artefact: Path, as_json: bool) -> None:
    """Measure a classifier on labelled requests: confusion matrix, scores with 95 % intervals, calibration error."""
    from cli.training.data import load_examples
    from cli.training.evaluate import evaluate as measure
    from cli.training.evaluate import render

    try:
        model = Classifier.load(artefact)
        names = model.taxonomy.names
        examples = [example for path in data for example in load_examples(path, names, unlabelled=True)]
    except ArtefactError as error:
        raise click.ClickException(str(error)) from error
    labelled = [example for example in examples if example.task]
    if not labelled:
        raise click.ClickException("no labelled rows: expected a `task` in each")
    found = [model.classify(example.body) for example in labelled]
    result = measure(
        [names.index(example.task) for example in labelled],
        [names.index(verdict.task) for verdict in found],
        [verdict.confidence for verdict in found],
        names,
        unlabelled=len(examples) - len(labelled),
    )
    click.echo(msgspec.json.encode(result) if as_json else render(result))


@classifier.command()
@ARTEFACT
@click.option("--prompt", help="Show how this prompt is taken.")
@click.option("--json", "as_json", is_flag=True)
def inspect(artefact: Path, prompt: str | None, as_json: bool) -> None:
    """Show an artefact's version, hash, tasks and training figures; with --prompt, the probability of each task."""
    from gateway.classify.prompt import read_prompt

    try:
        model = Classifier.load(artefact)
    except ArtefactError as error:
        raise click.ClickException(str(error)) from error
    report: dict[str, Any] = {
        "version": model.header.version,
        "hash": model.hash,
        "bytes": artefact.stat().st_size,
        "tasks": {task.name: task.description for task in model.taxonomy.tasks},
        "fallback": model.taxonomy.fallback,
        "signals": model.taxonomy.signals,
        "temperature": model.header.temperature,
        "training": model.header.training,
    }
    if prompt is not None:
        body = {"prompt": prompt}
        chances = model.probabilities(read_prompt(body))
        report["verdict"] = msgspec.to_builtins(model.classify(body))
        report["probabilities"] = dict(zip(model.taxonomy.names, [round(chance, 4) for chance in chances], strict=True))
    click.echo(msgspec.json.encode(report) if as_json else _text(report))


def _text(report: dict[str, Any]) -> str:
    held_out = report["training"].get("held_out", {})
    lines = [
        f"version      {report['version']}",
        f"hash         {report['hash']}",
        f"size         {report['bytes']} bytes",
        f"fallback     {report['fallback']}",
        f"temperature  {report['temperature']}",
    ]
    if held_out:
        lines.append(
            f"held out     macro-F1 {held_out['macro_f1']}, calibration error {held_out['calibration_error']}, "
            f"{report['training']['prompts']} prompts of {report['training']['families']} families"
        )
    lines += ["", *(f"{name:<16} {description}" for name, description in report["tasks"].items())]
    if "probabilities" in report:
        verdict = report["verdict"]
        lines += ["", f"task {verdict['task']} ({verdict['source']}, confidence {verdict['confidence']})"]
        lines += [f"  {name:<16} {chance:.4f}" for name, chance in report["probabilities"].items()]
    return "\n".join(lines)
