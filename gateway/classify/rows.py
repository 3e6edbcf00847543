"""One line of `breakeven classify` or of a label file, and its answer (used by commands and `/v1/classify`)."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.classify.classifier import Classifier
from gateway.errors import ArtefactError


class Row(msgspec.Struct, omit_defaults=True):
    """A request to classify: chat messages, or the user turns alone, or a completions prompt."""

    id: str | int | None = None
    turns: list[str] | None = None
    """The user's turns in order; the last one is to be answered."""
    messages: list[dict[str, Any]] | None = None
    prompt: str | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    response_format: dict[str, Any] | None = None
    prediction: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    declared: str | None = None
    task: str | None = None
    """The true task, where the row is labelled; never shown to the classifier."""
    language: str = ""
    family: str = ""
    """What rows share (source, template): those of one family never stand on both sides of a split."""
    author: str = ""
    document: str | None = None
    """Id of a document that replaces `{{document}}` in the messages."""

    def body(self) -> dict[str, Any]:
        """Return the OpenAI request body that this row stands for."""
        body: dict[str, Any] = {}
        if self.prompt is not None and self.messages is None and self.turns is None:
            body["prompt"] = self.prompt
        else:
            body["messages"] = self.messages or [{"role": "user", "content": turn} for turn in self.turns or []]
        for name in ("tools", "tool_choice", "response_format", "prediction", "metadata"):
            value = getattr(self, name)
            if value is not None:
                body[name] = value
        return body


class Verdict(msgspec.Struct):
    """What `breakeven classify` prints for one row."""

    id: str | int | None
    task: str
    confidence: float
    source: str
    signals: dict[str, Any]
    micros: float


_decoder = msgspec.json.Decoder(Row)


def parse_row(line: bytes | str) -> Row:
    """Read one JSON line. Raises ArtefactError saying which field is wrong and what was expected."""
    try:
        row = _decoder.decode(line)
    except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ArtefactError(str(error)) from error
    if row.messages is None and row.turns is None and row.prompt is None:
        raise ArtefactError("expected `turns` (list of strings) or `messages` (list of objects)")
    return row


def judge(classifier: Classifier, row: Row) -> Verdict:
    """Classify one row, by the same call that serves requests."""
    found = classifier.classify(row.body(), declared=row.declared)
    return Verdict(row.id, found.task, found.confidence, found.source, found.signals, round(found.micros, 1))
