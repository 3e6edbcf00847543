"""Reads the prompts of `breakeven distill generate` and deals them out: training, choosing or judging, task by task."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from gateway.classify import Classifier
from gateway.classify.rows import Row, parse_row
from gateway.errors import ArtefactError

if TYPE_CHECKING:
    from engine.distill.corpus import Split


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt to learn from, to choose weights by, or to judge by."""

    where: str
    """File and line, for messages."""
    id: str
    task: str
    split: Split
    body: dict[str, Any]


class PromptReader:
    """Reads prompt files; ids must be new over all of them."""

    def __init__(self, *, share: float, documents: Path | None, languages: Sequence[str] = ()) -> None:
        """`share` of the families chooses weights and as many judge; rows of other `languages` are left out, if named.

        Where whole files judge (see `read`), families do not. Raises ClickException where something cannot be read.
        """
        self._share = share
        self._languages = frozenset(languages)
        try:
            self._classifier = Classifier.load()
        except ArtefactError as error:
            raise click.ClickException(str(error)) from error
        self._documents = _documents(documents) if documents is not None else {}
        self._seen: dict[str, str] = {}
        self._judged = False
        self.faults: list[str] = []
        """One message `FILE:LINE: …` for each line that is no prompt."""

    def read(self, path: Path, *, held_out: bool = False) -> list[Prompt]:
        """Return a file's prompts; all of them to judge by, or by family. Raises ClickException."""
        self._judged = self._judged or held_out
        try:
            lines = path.read_bytes().splitlines()
        except OSError as error:
            raise click.ClickException(f"{path}: cannot be read: {error.strerror}") from error
        prompts = []
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            where = f"{path}:{number}"
            try:
                row = _row(line)
                if not self._languages or not row.language or row.language in self._languages:
                    prompts.append(self._prompt(where, row, held_out=held_out))
            except ArtefactError as error:
                self.faults.append(f"{where}: {error}")
        return prompts

    def _prompt(self, where: str, row: Row, *, held_out: bool) -> Prompt:
        name = str(row.id) if row.id is not None else ""
        if not name:
            raise ArtefactError("id: expected a string or a number")
        if name in self._seen:
            raise ArtefactError(f"id: expected a new one, {name!r} is also in {self._seen[name]}")
        body = self._with_document(row)
        task = row.task or self._classifier.classify(body, declared=row.declared).task
        self._seen[name] = where
        return Prompt(where, name, task, "held-out" if held_out else self._split(row.family or name), body)

    def _split(self, family: str) -> Split:
        place = _fraction(family)
        if place < self._share:
            return "choose"
        return "held-out" if place < 2 * self._share and not self._judged else "train"

    def _with_document(self, row: Row) -> dict[str, Any]:
        body = row.body()
        if row.document is None:
            return body
        if row.document not in self._documents:
            raise ArtefactError(f"document: expected one of --documents, got {row.document!r}")
        text = msgspec.json.encode(self._documents[row.document])[1:-1]
        filled: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(body).replace(b"{{document}}", text))
        return filled


def in_turns(prompts: Sequence[Prompt]) -> list[Prompt]:
    """Shuffle within each task by id, and deal the tasks in turns, so that a run cut short has seen all alike."""
    by_task: dict[str, list[Prompt]] = {}
    for prompt in sorted(prompts, key=lambda prompt: _fraction(prompt.id)):
        by_task.setdefault(prompt.task, []).append(prompt)
    longest = max(map(len, by_task.values()), default=0)
    return [rows[turn] for turn in range(longest) for _, rows in sorted(by_task.items()) if turn < len(rows)]


def _fraction(text: str) -> float:
    """A number in [0, 1) that depends on the text alone."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big") / 2**48


def _row(line: bytes) -> Row:
    """Read a line of a prompt file, or one that `breakeven db texts` has printed."""
    line = line.removeprefix(b"\xef\xbb\xbf")
    try:
        recorded = msgspec.json.decode(line, type=_Recorded)
    except msgspec.MsgspecError:
        return parse_row(line)
    prompt = recorded.prompt
    messages, text = (prompt, None) if isinstance(prompt, list) else (None, prompt)
    return Row(id=recorded.request_id, messages=messages, prompt=text, task=recorded.task, family=recorded.end_user)


class _Recorded(msgspec.Struct):
    """Traffic that a policy let the gateway keep."""

    request_id: str
    prompt: list[dict[str, Any]] | str
    task: str
    end_user: str = ""


def _documents(path: Path) -> dict[str, str]:
    class Document(msgspec.Struct):
        id: str
        text: str

    try:
        lines: Iterable[bytes] = path.read_bytes().splitlines()
        found = [msgspec.json.decode(line, type=Document) for line in lines if line.strip()]
    except OSError as error:
        raise click.ClickException(f"{path}: cannot be read: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise click.ClickException(f"{path}: expected lines with `id` and `text` ({error})") from error
    return {document.id: document.text for document in found}
