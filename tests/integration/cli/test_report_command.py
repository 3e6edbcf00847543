"""`breakeven report` on a data folder that a gateway left behind."""

from __future__ import annotations

import asyncio
import csv
import io
import json

import pytest
from click.testing import CliRunner

from cli.report import report
from gateway.db import Database
from tests.fixtures.records import make_record


@pytest.fixture
def data_dir(tmp_path, monkeypatch):
    monkeypatch.delenv("BREAKEVEN_DATABASE_URL", raising=False)
    monkeypatch.delenv("BREAKEVEN_DATA_DIR", raising=False)

    async def fill():
        database = Database(f"sqlite:///{tmp_path}/breakeven.db")
        await database.migrate()
        await database.insert_records([make_record(f"r{i}") for i in range(9)])
        await database.aclose()

    asyncio.run(fill())
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(report, [str(a) for a in arguments])


def test_text_names_the_task_and_its_gain(data_dir):
    result = run("--data-dir", data_dir)
    assert result.exit_code == 0, result.output
    assert "latest 7d" in result.stdout
    assert "Speculation pays on code" in result.stdout


def test_json(data_dir):
    got = json.loads(run("--data-dir", data_dir, "--since", "1h", "--format", "json").stdout)
    assert got["tasks"][0]["requests"] == 9
    assert got["tasks"][0]["gain"] == pytest.approx(13 * 0.02 / 0.121)


def test_csv_and_html(data_dir):
    rows = list(csv.DictReader(io.StringIO(run("--data-dir", data_dir, "--format", "csv").stdout)))
    assert [row["task"] for row in rows] == ["code", "all", "anonymous"]
    assert {row["estimator"] for row in rows} == {"randomised holdout, post-stratified ratio"}
    page = run("--data-dir", data_dir, "--format", "html").stdout
    assert page.startswith("<!doctype html>")
    assert "<script" not in page


def test_a_pdf_goes_to_a_file(data_dir, tmp_path):
    to = tmp_path / "report.pdf"
    assert run("--data-dir", data_dir, "--format", "pdf", "--output", to).exit_code == 0
    assert to.read_bytes().startswith(b"%PDF-")
    missing = run("--data-dir", data_dir, "--format", "pdf", "--output", tmp_path / "no" / "report.pdf")
    assert missing.exit_code == 1
    assert "--output" in missing.output


def test_nothing_there_says_so_and_makes_no_file(tmp_path, monkeypatch):
    monkeypatch.delenv("BREAKEVEN_DATABASE_URL", raising=False)
    result = run("--data-dir", tmp_path / "empty")
    assert result.exit_code == 1
    assert "there is no database" in result.output
    assert not (tmp_path / "empty").exists()


@pytest.mark.parametrize("since", ["soon", "7", "-1d"])
def test_a_bad_window(data_dir, since):
    result = run("--data-dir", data_dir, f"--since={since}")
    assert result.exit_code == 2
    assert "expected a number with s, m, h, d or w" in result.output


def test_a_file_that_is_no_database(tmp_path, monkeypatch):
    monkeypatch.delenv("BREAKEVEN_DATABASE_URL", raising=False)
    (tmp_path / "breakeven.db").write_bytes(b"not a database" * 1000)
    result = run("--data-dir", tmp_path)
    assert result.exit_code == 1
    assert "Traceback" not in result.output
    assert "database" in result.output
