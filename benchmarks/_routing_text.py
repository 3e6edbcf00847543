"""Prompt-lookup traces over real text: Python's own source, documents and data. Used by `_routing_settings`.

A text stands for a request: its first part is the prompt, the rest the answer, which prompt lookup drafts as the engine
does. So runs come as they do in writing: in stretches, more of them the longer an answer gets, and each file its own.
"""

from __future__ import annotations

import json
import random
import re
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path

from cli.simulation.traces import Trace
from engine.spec_decode.ngram import MAX_N, NgramIndex

DRAFT = 16
TOKEN = re.compile(r"\s?[A-Za-z]{1,6}|\s?\d{1,3}|\s+|[^\sA-Za-z\d]")
ROOT = Path(__file__).resolve().parents[1]


def text_traces(per_task: int, seed: int, *, prompt: int = 300, answer: int = 500) -> list[Trace]:
    """Return `per_task` requests each of code, documents, data and notes (the comments within code)."""
    rng = random.Random(seed)
    traces = []
    for task, texts in (("code", _code()), ("documents", _documents()), ("data", _data()), ("notes", _notes())):
        pieces = [TOKEN.findall(text) for text in texts]
        pieces = [piece for piece in pieces if len(piece) > 200]
        for i in range(per_task):
            tokens = pieces[rng.randrange(len(pieces))]
            size = int(min(2000, max(60, rng.lognormvariate(0, 0.6) * (prompt + answer))))
            start = rng.randrange(max(1, len(tokens) - size))
            part = tokens[start : start + size]
            cut = max(20, len(part) * prompt // (prompt + answer))
            traces.append(lookup_trace(f"{task}-{i}", task, part, cut))
    return traces


def lookup_trace(name: str, task: str, tokens: Sequence[str], cut: int) -> Trace:
    """Return what prompt lookup would accept of tokens[cut:], a draft proposed at every position."""
    ids: dict[str, int] = {}
    numbers = [ids.setdefault(token, len(ids)) for token in tokens]
    index = NgramIndex()
    emitted, drafted = [], []
    for at in range(cut, len(numbers)):
        known = numbers[:at]
        index.extend(known)
        found = index.find(known[-MAX_N:])
        run = 0
        if found is not None:
            source = known[found : found + DRAFT]
            while run < DRAFT and at + run < len(numbers) and source[run % len(source)] == numbers[at + run]:
                run += 1
        emitted.append(min(1 + run, len(numbers) - at))
        drafted.append(0 if found is None else DRAFT)
    return Trace(name, task, task, cut, tuple(emitted), tuple(drafted))


def _files() -> list[Path]:
    folder = Path(sysconfig.get_paths()["stdlib"])
    return sorted(path for path in folder.rglob("*.py") if "site-packages" not in path.parts)[::7]


def _read(paths: Sequence[Path]) -> Iterator[str]:
    for path in paths:
        yield path.read_text("utf-8", errors="replace")[:20_000]


def _code() -> Iterator[str]:
    return _read(_files()[:120])


def _documents() -> Iterator[str]:
    return _read(sorted(ROOT.glob("docs/**/*.md")) + sorted(ROOT.glob("*.md")))


def _data() -> Iterator[str]:
    yield from _read(sorted((ROOT / "benchmarks" / "traces").glob("*.yaml")))
    lines = (ROOT / "classifier_data" / "documents.jsonl").read_text("utf-8").splitlines()
    for line in lines[:200]:
        yield json.dumps(json.loads(line), indent=1)


def _notes() -> Iterator[str]:
    """The comments and docstrings of many files: prose that repeats itself little."""
    for text in _read(_files()[120:400]):
        yield "\n".join(re.findall(r'#.*|""".*?"""', text, re.DOTALL))
