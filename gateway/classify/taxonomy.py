"""The tasks that requests are sorted into, from YAML that the user owns (used by `artefact`)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import msgspec
import yaml

from gateway.errors import ArtefactError

NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,39}\Z")
SIGNALS: Final = ("response_format", "tools")
MAX_TASKS: Final = 64


class Task(msgspec.Struct, frozen=True):
    """One task: what belongs to it, in words and by example."""

    name: str
    description: str = ""
    examples: tuple[str, ...] = ()


class Taxonomy(msgspec.Struct, frozen=True):
    """All tasks, the one that stands for "don't know", and what certain structural signals settle alone."""

    tasks: tuple[Task, ...]
    fallback: str
    signals: dict[str, str] = {}
    """Signal (`response_format`, `tools`) → the task that it settles."""

    @property
    def names(self) -> tuple[str, ...]:
        """Task names in their order, which is the order of the model's outputs."""
        return tuple(task.name for task in self.tasks)


def parse_taxonomy(text: str, source: str) -> Taxonomy:
    """Read `tasks: {name: {description, examples}}`, `fallback`, `signals`. Raises ArtefactError naming the field."""
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ArtefactError(f"{source}: not YAML: {error}") from error
    if not isinstance(data, dict) or not isinstance(data.get("tasks"), dict):
        raise ArtefactError(f"{source}: tasks: expected a mapping of task name to description and examples")
    unknown = sorted(set(map(str, data)) - {"version", "tasks", "fallback", "signals"})
    if unknown:
        raise ArtefactError(f"{source}: {unknown[0]}: unknown key; expected version, tasks, fallback or signals")
    tasks = tuple(_task(source, name, value) for name, value in data["tasks"].items())
    if not 2 <= len(tasks) <= MAX_TASKS:
        raise ArtefactError(f"{source}: tasks: expected 2 to {MAX_TASKS} tasks, found {len(tasks)}")
    taxonomy = Taxonomy(tasks, data.get("fallback", tasks[-1].name), data.get("signals") or {})
    return check_taxonomy(taxonomy, source)


def _task(source: str, name: object, value: object) -> Task:
    if not isinstance(name, str) or not NAME.match(name):
        raise ArtefactError(f"{source}: tasks: {name!r}: expected a name of lower-case letters, digits and _")
    fields = {"description": value} if isinstance(value, str) else value or {}
    if not isinstance(fields, dict) or not fields.keys() <= {"description", "examples"}:
        raise ArtefactError(f"{source}: tasks.{name}: expected a description, or description and examples")
    try:
        return msgspec.convert({"name": name, **fields}, Task)
    except msgspec.ValidationError as error:
        raise ArtefactError(f"{source}: tasks.{name}: {error}") from error


def check_taxonomy(taxonomy: Taxonomy, source: str) -> Taxonomy:
    """Return `taxonomy` if its references hold. Raises ArtefactError."""
    if taxonomy.fallback not in taxonomy.names:
        raise ArtefactError(f"{source}: fallback: {taxonomy.fallback!r} is none of the tasks")
    if not isinstance(taxonomy.signals, dict):
        raise ArtefactError(f"{source}: signals: expected a mapping of signal to task")
    for signal, task in taxonomy.signals.items():
        if signal not in SIGNALS:
            raise ArtefactError(f"{source}: signals: {signal!r}: expected one of {', '.join(SIGNALS)}")
        if task not in taxonomy.names:
            raise ArtefactError(f"{source}: signals.{signal}: {task!r} is none of the tasks")
    return taxonomy


def load_taxonomy(path: Path) -> Taxonomy:
    """Read a taxonomy file. Raises ArtefactError."""
    try:
        return parse_taxonomy(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise ArtefactError(f"{path}: {error}") from error
