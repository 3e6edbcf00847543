"""`breakeven db texts` and `forget`: what policies keep can be read, and deleted before its time."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from cli.main import main
from gateway.db import Database
from gateway.tap import Kept
from gateway.texts import stored
from tests.fixtures.records import make_record


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data folder with three kept texts, one of them 10 days old."""

    async def fill() -> None:
        database = Database(f"sqlite:///{tmp_path}/breakeven.db")
        await database.migrate()
        for name, age, key in (("old", 10 * 86400.0, "k1"), ("mine", 60.0, "k1"), ("yours", 30.0, "k2")):
            body = {"messages": [{"role": "user", "content": f"Grüße, {name}"}]}
            record = make_record(name, at=time.time() - age, key_id=key)
            await database.insert_texts([stored(Kept(body, 1, record, 90 * 86400.0, None))])
        await database.aclose()

    asyncio.run(fill())
    return tmp_path


def run(folder: Path, *words: str) -> Result:
    return CliRunner().invoke(main, ["db", *words, "--data-dir", str(folder)])


def names(folder: Path, *words: str) -> list[str]:
    result = run(folder, "texts", *words)
    assert result.exit_code == 0, result.output
    return [json.loads(line)["request_id"] for line in result.output.splitlines()]


def test_texts_are_printed_one_object_a_line(folder: Path) -> None:
    line = msgspec.json.decode(run(folder, "texts", "--key", "k2").output)
    assert line["prompt"] == [{"role": "user", "content": "Grüße, yours"}]
    assert (line["completion"], line["task"], line["truncated"]) == ([], "code", False)
    assert names(folder) == ["mine", "yours"]
    assert names(folder, "--since", "30d") == ["old", "mine", "yours"]
    assert names(folder, "--since", "100w", "--limit", "1") == ["yours"]
    assert names(folder, "--rule", "other") == names(folder, "--task", "chat") == []


def test_texts_are_forgotten_as_named(folder: Path) -> None:
    assert run(folder, "forget", "--request", "mine").output == "1 texts deleted\n"
    assert run(folder, "forget", "--key", "k1").output == "1 texts deleted\n"
    assert names(folder, "--since", "30d") == ["yours"]
    assert run(folder, "forget", "--all").output == "1 texts deleted\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["forget"], "name what to forget"),
        (["forget", "--all", "--rule", "x"], "name what to forget"),
        (["texts", "--since", "7"], "unit is missing"),
        (["texts", "--limit", "0"], "--limit"),
    ],
)
def test_unclear_wishes_are_refused(folder: Path, words: list[str], says: str) -> None:
    result = run(folder, *words)
    assert result.exit_code == 2
    assert says in result.output
    assert names(folder, "--since", "30d") == ["old", "mine", "yours"]
