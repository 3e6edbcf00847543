"""Nothing of one machine, no secret and no unfinished business gets into the repository."""

from __future__ import annotations

import re

from tests.repo.tree import ROOT, files, text

BINARY = (".png", ".npz", ".gguf", ".safetensors", ".woff2", ".ico", ".pdf", ".gz", ".bin")
TEXTS = [n for n in files() if not n.endswith(BINARY) and (ROOT / n).stat().st_size < 2_000_000]
HOME = re.compile(r"(?<![\w.])/(?:root|home/\w+|Users/\w+)/")
SECRET = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----|\bAKIA[0-9A-Z]{16}\b|\bghp_[0-9A-Za-z]{36}\b")
UNFINISHED = re.compile(r"#.*\b(TODO|FIXME|XXX)\b|type: ignore(?!\[)|noqa(?!:)")


def lines_with(pattern, names):
    """Every line of these files in which the pattern is found, as `file:line: text`."""
    return [
        f"{name}:{number}: {line.strip()[:120]}"
        for name in names
        for number, line in enumerate(text(name).splitlines(), 1)
        if pattern.search(line)
    ]


def test_no_path_of_one_machine():
    assert not lines_with(HOME, TEXTS)
    checkout = str(ROOT) + "/"
    assert not [name for name in TEXTS if len(ROOT.parts) > 2 and checkout in text(name)]


def test_no_secret():
    assert not lines_with(SECRET, TEXTS)


def test_nothing_is_unfinished_or_silenced_wholesale():
    assert not lines_with(UNFINISHED, [n for n in TEXTS if n.endswith(".py") and not n.startswith("tests/repo/")])


def test_no_large_file():
    sizes = {n: (ROOT / n).stat().st_size for n in files()}
    drafts = [size for n, size in sizes.items() if n.startswith("engine/drafts/")]
    assert sum(drafts) < 20_000_000
    assert not {n: size for n, size in sizes.items() if size > 5_000_000 and not n.startswith("engine/drafts/")}
