"""Nothing of one machine, no secret and no unfinished business gets into the repository."""

from __future__ import annotations

import re

import pytest

from tests.repo.tree import ROOT, files, text

BINARY = (".png", ".npz", ".gguf", ".safetensors", ".woff2", ".ico", ".pdf", ".gz", ".bin")
TEXTS = [n for n in files() if not n.endswith(BINARY) and (ROOT / n).stat().st_size < 2_000_000]
HOME = re.compile(r"(?<![\w.])/(?:root|home/\w+|Users/\w+)/")
CHECKOUT = str(ROOT.parent) + "/"
SECRET = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----|\bAKIA[0-9A-Z]{16}\b|\bghp_[0-9A-Za-z]{36}\b")


@pytest.mark.parametrize("name", TEXTS)
def test_no_machine_path_and_no_secret(name):
    content = (ROOT / name).read_text(encoding="utf-8")
    assert not HOME.search(content), HOME.search(content)
    assert len(CHECKOUT) < 4 or CHECKOUT not in content
    assert not SECRET.search(content)


@pytest.mark.parametrize("name", [n for n in TEXTS if n.endswith(".py") and not n.startswith("tests/repo/")])
def test_nothing_is_unfinished_or_silenced_wholesale(name):
    marks = [
        f"{name}:{number}: {line.strip()}"
        for number, line in enumerate(text(name).splitlines(), 1)
        if re.search(r"#.*\b(TODO|FIXME|XXX)\b|type: ignore(?!\[)|noqa(?!:)", line)
    ]
    assert not marks


def test_no_large_file():
    large = {n: size for n in files() if (size := (ROOT / n).stat().st_size) > 5_000_000}
    assert not large
