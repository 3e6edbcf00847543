"""`breakeven data`: everything of one subject comes out, everything of it goes, and nothing of anybody else's."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta

import pytest
from click.testing import CliRunner

from cli.data import data
from gateway.app import load_secret
from gateway.db import Database, StoredText, Subject
from gateway.fingerprint import hashed_user
from tests.fixtures.records import make_record

NOW = datetime.now(UTC)


def stored(request_id, key_id, end_user):
    return StoredText(
        request_id, NOW, NOW + timedelta(days=1), "chat", "m", key_id, end_user, "code", "keep", "abc", 200,
        '[{"role": "user", "content": "hello"}]', '[{"content": "hi"}]', False,
    )  # fmt: skip


async def fill(url, ann):
    database = Database(url)
    await database.migrate()
    await database.insert_records([make_record(f"ann{i}", key_id="k1", end_user=ann) for i in range(503)])
    await database.insert_records([make_record(f"ben{i}", key_id="k1", end_user="b") for i in range(3)])
    await database.insert_records([make_record("other", key_id="k2")])
    await database.insert_texts([stored("ann0", "k1", ann), stored("ben0", "k1", "b")])
    await database.aclose()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.delenv("BREAKEVEN_DATABASE_URL", raising=False)
    asyncio.run(fill(f"sqlite:///{tmp_path}/breakeven.db", hashed_user("ann@example.org", load_secret(tmp_path))))
    return tmp_path


def run(folder, *arguments):
    return CliRunner().invoke(data, [*arguments, "--data-dir", str(folder)])


def test_export_has_every_record_of_the_end_user_and_no_name(folder):
    result = run(folder, "export", "--end-user", "ann@example.org")
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert len({row["request_id"] for row in rows if row["kind"] == "request"}) == 503
    assert [row["prompt"][0]["content"] for row in rows if row["kind"] == "text"] == ["hello"]
    assert rows[0]["decision"]["numbers"]["a"] == 2.75
    assert "ann@example.org" not in result.stdout


def test_erase_takes_all_of_one_end_user_and_none_of_another(folder):
    assert run(folder, "erase", "--end-user", "ann@example.org").exit_code == 1  # asked, and nobody said yes
    result = run(folder, "erase", "--end-user", "ann@example.org", "--yes")
    assert "503 requests and 1 texts erased" in result.output
    assert run(folder, "export", "--end-user", "ann@example.org").stdout == ""
    left = run(folder, "export", "--key", "k1").stdout.splitlines()
    assert {json.loads(line)["request_id"] for line in left} == {"ben0", "ben1", "ben2"}


@pytest.mark.parametrize("arguments", [(), ("--key", "k1", "--end-user", "ann"), ("--key", "")])
@pytest.mark.parametrize("command", ["export", "erase"])
def test_exactly_one_subject_is_named(folder, command, arguments):
    result = run(folder, command, *arguments)
    assert result.exit_code == 2
    assert "either --key or --end-user" in result.output


def test_without_the_secret_nobody_is_guessed(folder):
    (folder / "secret").unlink()
    result = run(folder, "erase", "--end-user", "ann@example.org", "--yes")
    assert result.exit_code == 1
    assert "without the gateway's secret" in result.output
    assert not (folder / "secret").exists()


@pytest.mark.parametrize("command", [("export",), ("erase", "--yes")])
def test_a_folder_without_a_database_is_no_success(tmp_path, monkeypatch, command):
    monkeypatch.delenv("BREAKEVEN_DATABASE_URL", raising=False)
    result = run(tmp_path / "mistyped", *command, "--key", "k1")
    assert result.exit_code == 1
    assert "there is no database" in result.output
    assert not (tmp_path / "mistyped").exists()


def test_gateways_with_one_key_need_no_file(folder, monkeypatch):
    shared = "the same for every gateway"
    assert load_secret(folder, shared) == load_secret(folder / "other", shared) != load_secret(folder)
    monkeypatch.setenv("BREAKEVEN_SECRET", shared)
    assert run(folder, "export", "--end-user", "ann@example.org").stdout == ""  # kept under the file's key
    (folder / "secret").unlink()
    assert run(folder, "export", "--end-user", "ann@example.org").exit_code == 0
    monkeypatch.setenv("BREAKEVEN_SECRET", "short")
    refused = run(folder, "export", "--end-user", "ann@example.org")
    assert refused.exit_code == 1
    assert "16 characters at least" in refused.output


def test_sums_are_those_that_reports_are_worked_out_from(folder):
    asyncio.run(pack(f"sqlite:///{folder}/breakeven.db"))
    result = run(folder, "sums", "--since", "3d")
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert {(row["key_id"], row["temperature"], row["requests"]) for row in rows} == {
        ("k1", "0", 506), ("k2", "0", 1), ("k1", "*", 2),
    }  # fmt: skip
    assert rows[0]["task"] == "code"
    assert "expected a number with s, m, h, d or w" in run(folder, "sums", "--since", "soon").output


async def pack(url):
    database = Database(url)
    old = (NOW - timedelta(days=1)).timestamp()
    await database.insert_records([make_record(f"old{i}", key_id="k1", at=old) for i in range(2)])
    await database.maintain()
    await database.aclose()


async def test_an_erased_applications_packed_sums_go_on_too(database_url):
    database, day = Database(database_url), (NOW - timedelta(days=1)).timestamp()
    await database.migrate()
    for key in ("k1", "erased", "k10"):
        await database.insert_records([make_record(f"{key}{i}", key_id=key, at=day) for i in range(2)])
        await database.maintain()
    gone = await database.erase(Subject(key_id="k1"), actor="test")
    assert gone.rollups == 4  # 15 minutes, hour, day and week
    for days in (1.1, 40):
        window = await database.window(NOW.timestamp() - days * 86400)
        assert {row.key_id: row.sums.requests for row in window.activity} == {"erased": 4, "k10": 2}
    await database.aclose()


async def test_an_applications_sums_go_on_without_its_name(database_url):
    database = Database(database_url)
    await database.migrate()
    ours, theirs = [make_record(f"r{i}", key_id="k1") for i in range(5)], [make_record("x", key_id="erased")]
    await database.insert_records(ours + theirs)
    gone = await database.erase(Subject(key_id="k1"), actor="test")
    assert (gone.requests, gone.rollups) == (5, 1)
    (row,) = (await database.window(0)).activity
    assert (row.key_id, row.sums.requests, row.sums.completion_tokens) == ("erased", 6, 6 * 14)
    with pytest.raises(ValueError, match="either a key or an end user"):
        await database.erase(Subject(), actor="test")
    await database.aclose()
