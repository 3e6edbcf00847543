"""Prompts that paste a document: read with it, and varied with others of its kind."""

import random

import msgspec
import pytest

from cli.training.data import load_examples
from cli.training.fit import Options, varied
from cli.training.noise import cut
from gateway.errors import ArtefactError

LONG = "One fox ran. Two foxes ran after it! Did a third one run? " * 12
DOCUMENTS = [
    {"id": "letter", "language": "en", "kind": "letter", "text": "Dear Ada, the roof leaks."},
    {"id": "report", "language": "en", "kind": "report", "text": "The mill burned down."},
    {"id": "brief", "language": "de", "kind": "brief", "text": "Liebe Ada, das Dach ist undicht."},
    {"id": "loop", "language": "en", "kind": "code", "form": "code", "text": "while True: pass"},
]


def row(name, document, text="Sum this up: {{document}}"):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}]
    return {"id": name, "task": "summarization", "family": name, "messages": messages, "document": document}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "prompts").mkdir()
    (tmp_path / "documents.jsonl").write_bytes(b"\n".join(map(msgspec.json.encode, DOCUMENTS)))
    rows = [row("prose", "letter"), row("german", "brief"), row("code", "loop")]
    (tmp_path / "prompts/rows.jsonl").write_bytes(b"\n".join(map(msgspec.json.encode, rows)))
    return tmp_path


def asked(body):
    return body["messages"][-1]["content"]


def test_the_document_stands_in_place_of_the_placeholder(folder):
    prose, german, code = load_examples(folder, ["summarization"])
    assert asked(prose.body) == "Sum this up: Dear Ada, the roof leaks."
    assert asked(german.body) == "Sum this up: Liebe Ada, das Dach ist undicht."
    assert asked(code.body) == "Sum this up: while True: pass"


def test_copies_paste_documents_of_the_same_language_and_form_alone(folder):
    examples = load_examples(folder, ["summarization"])
    copies = varied(examples, Options(noise=0, joins=0, swaps=20))[len(examples) :]
    found = [{asked(body) for index, body in copies if index == place} for place in range(3)]
    assert found[0] == {"Sum this up: Dear Ada, the roof leaks.", "Sum this up: The mill burned down."}
    assert found[1:] == [{asked(examples[1].body)}, {asked(examples[2].body)}]
    assert all(body["messages"][0]["content"] == "Be brief." for _, body in copies)


def test_an_unknown_document_is_an_error_with_its_line(folder):
    (folder / "prompts/rows.jsonl").write_bytes(msgspec.json.encode(row("prose", "lost")))
    with pytest.raises(ArtefactError, match=r"rows.jsonl:1: document: 'lost' is not in documents.jsonl"):
        load_examples(folder, ["summarization"])


def test_a_long_text_is_cut_between_sentences_and_a_short_one_never():
    rng = random.Random(3)
    parts = {cut(LONG, rng) for _ in range(60)}
    assert len(parts) > 5
    assert all(part in LONG and len(part) >= 100 for part in parts)
    assert all(part[0] in "OTD" and part[-1] in ".!?" for part in parts - {LONG})
    assert cut(LONG[:200], rng) == LONG[:200]
