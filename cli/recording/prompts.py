"""Reads the prompts of `breakeven record-traces`, one JSON request a line, as `breakeven classify` takes them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from gateway.classify import Classifier
from gateway.classify.rows import Row, parse_row
from gateway.errors import ArtefactError


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request to record."""

    where: str
    """File and line, for messages."""
    id: str
    task: str
    """The row's own task, else the classifier's."""
    classified_task: str
    body: dict[str, Any]
    """OpenAI's request body, without a model and limits."""


def read_prompts(path: Path, classifier: Classifier) -> tuple[list[Prompt], list[str]]:
    """Return the prompts, and one message `FILE:LINE: …` for each line that is none. Raises ClickException."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise click.ClickException(f"{path}: cannot be read: {error.strerror}") from error
    prompts: list[Prompt] = []
    faults: list[str] = []
    seen: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            prompt = _prompt(where, parse_row(line.removeprefix(b"\xef\xbb\xbf")), classifier)
        except ArtefactError as error:
            faults.append(f"{where}: {error}")
            continue
        if prompt.id in seen:
            faults.append(f"{where}: id: expected a new one, {prompt.id!r} is also in {seen[prompt.id]}")
            continue
        seen[prompt.id] = where
        prompts.append(prompt)
    if not prompts and not faults:
        raise click.ClickException(f"{path}: expected at least one prompt, found none")
    return prompts, faults


def _prompt(where: str, row: Row, classifier: Classifier) -> Prompt:
    if row.id is None or row.id == "":
        raise ArtefactError("id: expected a string or a number")
    if row.document is not None:
        raise ArtefactError("document: expected messages that hold their text, not the name of a document")
    if row.task == "":
        raise ArtefactError("task: expected a name; leave it out to have the prompt classified")
    body = row.body()
    found = classifier.classify(body, declared=row.declared).task
    return Prompt(where, str(row.id), row.task or found, found, body)
