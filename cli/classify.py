"""`breakeven classify FILE.jsonl`: which task each request is, by the same call that serves requests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import click
import msgspec

from gateway.classify import Classifier
from gateway.classify.rows import judge, parse_row
from gateway.errors import ArtefactError


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path))
@click.option(
    "--artefact",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A classifier made by `breakeven classifier train`; by default the shipped one.",
)
def classify(file: Path, artefact: Path | None) -> None:
    """Classify the requests in FILE, one JSON object a line (`-` reads standard input).

    A line holds `id` and `turns` (the user's turns) or `messages`, optionally `tools` and `response_format`. For each,
    one line is printed: `id`, `task`, `confidence`, `source`, `signals`, `micros`. A bad line is reported on standard
    error by its number, the others are classified, and the exit code is 1.
    """
    try:
        classifier = Classifier.load(artefact)
    except ArtefactError as error:
        raise click.ClickException(str(error)) from error
    if str(file) == "-":
        bad = _classify_lines(classifier, sys.stdin.buffer, "<stdin>")
    else:
        with file.open("rb") as lines:
            bad = _classify_lines(classifier, lines, str(file))
    if bad:
        raise SystemExit(1)


def _classify_lines(classifier: Classifier, lines: BinaryIO, name: str) -> int:
    bad = 0
    encode = msgspec.json.Encoder().encode
    for number, line in _numbered(lines):
        try:
            verdict = judge(classifier, parse_row(line))
        except ArtefactError as error:
            bad += 1
            click.echo(f"{name}:{number}: error: {error}", err=True)
            continue
        click.echo(encode(verdict))
    return bad


def _numbered(lines: BinaryIO) -> Iterator[tuple[int, bytes]]:
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield number, line.removeprefix(b"\xef\xbb\xbf")
