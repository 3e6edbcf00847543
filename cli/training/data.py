"""Reads labelled prompts and documents, and splits them by family (called by `cli.classifier`)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from gateway.classify.rows import parse_row
from gateway.classify.taxonomy import Taxonomy
from gateway.errors import ArtefactError

PLACEHOLDER = "{{document}}"


class Document(msgspec.Struct):
    """A text that several prompts paste, each with another request."""

    id: str
    language: str
    kind: str
    text: str
    form: str = "prose"
    """Documents of one form and language can stand for one another in a prompt."""


@dataclass(frozen=True)
class Example:
    """One labelled request."""

    id: str
    task: str
    language: str
    family: str
    author: str
    body: dict[str, Any]
    template: dict[str, Any] | None = None
    """The body before its document was pasted, if it pastes one."""
    texts: tuple[str, ...] = ()
    """What could be pasted there: its document, and those of the same language and form."""


def pasted(template: dict[str, Any], text: str) -> dict[str, Any]:
    """Return a copy of a chat body with `text` for each placeholder in its messages."""
    messages = [
        {**message, "content": message["content"].replace(PLACEHOLDER, text)}
        if isinstance(message.get("content"), str)
        else message
        for message in template.get("messages", [])
    ]
    return {**template, "messages": messages} if messages else template


def load_documents(path: Path) -> dict[str, Document]:
    """Read `documents.jsonl`; no file means no documents. Raises ArtefactError with the line."""
    found: dict[str, Document] = {}
    if path.is_file():
        for number, line in enumerate(path.read_bytes().splitlines(), start=1):
            try:
                document = msgspec.json.decode(line, type=Document)
            except msgspec.MsgspecError as error:
                raise ArtefactError(f"{path}:{number}: {error}") from error
            found[document.id] = document
    return found


def load_examples(path: Path, tasks: Sequence[str], *, unlabelled: bool = False) -> list[Example]:
    """Read one JSONL file, or every `prompts/*.jsonl` of a folder. Raises ArtefactError with file and line.

    With `unlabelled`, rows whose `task` is null or missing are kept with an empty task.
    """
    files = sorted((path / "prompts").glob("*.jsonl")) if path.is_dir() else [path]
    if not files:
        raise ArtefactError(f"{path}: expected prompts/*.jsonl in this folder")
    root = path if path.is_dir() else path.parent
    documents = load_documents(root / "documents.jsonl")
    examples = []
    for file in files:
        try:
            lines = file.read_bytes().splitlines()
        except OSError as error:
            raise ArtefactError(f"{file}: {error.strerror}") from error
        for number, line in enumerate(lines, start=1):
            if line.strip():
                examples.append(_example(f"{file}:{number}", line, tasks, documents, unlabelled))
    return examples


def taxonomy_examples(taxonomy: Taxonomy) -> list[Example]:
    """Return the examples that a taxonomy gives of its tasks, as rows of one family per task."""
    return [
        Example(
            f"{task.name}-{number}",
            task.name,
            "",
            f"examples of {task.name}",
            "taxonomy",
            {"messages": [{"role": "user", "content": text}]},
        )
        for task in taxonomy.tasks
        for number, text in enumerate(task.examples, start=1)
    ]


def _example(
    where: str, line: bytes, tasks: Sequence[str], documents: dict[str, Document], unlabelled: bool
) -> Example:
    try:
        row = parse_row(line)
    except ArtefactError as error:
        raise ArtefactError(f"{where}: {error}") from error
    if row.task not in tasks and not (unlabelled and row.task is None):
        raise ArtefactError(f"{where}: task: expected one of {', '.join(tasks)}, found {row.task!r}")
    family = row.family or row.author or str(row.id)
    example = Example(str(row.id), row.task or "", row.language, family, row.author, row.body())
    if row.document is None:
        return example
    if row.document not in documents:
        raise ArtefactError(f"{where}: document: {row.document!r} is not in documents.jsonl")
    document = documents[row.document]
    alike = [other.text for other in documents.values() if _alike(other, document)]
    body = pasted(example.body, document.text)
    return replace(example, body=body, template=example.body, texts=tuple(alike))


def _alike(one: Document, other: Document) -> bool:
    return (one.language, one.form) == (other.language, other.form)


def folds_of(examples: Sequence[Example], count: int, seed: int) -> list[int]:
    """Return each example's fold: whole families are dealt, largest first, to the fold with fewest rows of it."""
    members: dict[str, list[Example]] = {}
    for example in examples:
        members.setdefault(example.family, []).append(example)
    order = sorted(members)
    random.Random(seed).shuffle(order)  # noqa: S311 (a split, not a secret)
    order.sort(key=lambda name: -len(members[name]))
    load: list[dict[str, int]] = [{} for _ in range(count)]
    fold: dict[str, int] = {}
    for name in order:
        tasks = {example.task for example in members[name]}
        fold[name] = min(range(count), key=lambda k: (sum(load[k].get(t, 0) for t in tasks), sum(load[k].values()), k))
        for example in members[name]:
            load[fold[name]][example.task] = load[fold[name]].get(example.task, 0) + 1
    return [fold[example.family] for example in examples]
