"""`breakeven keys` and `breakeven db`: what they print, what they refuse."""

import json
import re

import pytest
from click.testing import CliRunner

from cli.main import main


@pytest.fixture
def breakeven(tmp_path, monkeypatch):
    for name in ("BREAKEVEN_DATABASE_URL", "BREAKEVEN_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments, folder="data"):
        return CliRunner().invoke(main, [*arguments, "--data-dir", str(tmp_path / folder)])

    return run


def listed(breakeven):
    return json.loads(breakeven("keys", "list", "--json").stdout)


def test_a_key_is_printed_once_and_listed_without_its_secret(breakeven):
    made = breakeven("keys", "create", "--role", "app", "--name", "web", "--rpm", "60", "--tpm", "9000")
    token = made.stdout.strip()
    assert re.fullmatch(r"bk-[0-9a-f]{12}-[\w-]{43}", token)
    [key] = listed(breakeven)
    assert key["key"] == token[:16] + "…"
    assert (key["role"], key["name"], key["may_force"], key["revoked_at"]) == ("app", "web", False, None)
    assert (key["requests_per_minute"], key["tokens_per_minute"]) == (60, 9000)
    table = breakeven("keys", "list").stdout
    assert "web" in table
    assert token not in table + made.stderr


@pytest.mark.parametrize("form", ["whole", "id", "shown"])
def test_a_key_is_revoked_by_any_of_its_names(breakeven, form):
    token = breakeven("keys", "create", "--role", "operator").stdout.strip()
    name = {"whole": token, "id": token.split("-")[1], "shown": listed(breakeven)[0]["key"]}[form]
    assert breakeven("keys", "revoke", name).exit_code == 0
    assert listed(breakeven)[0]["revoked_at"] is not None
    again = breakeven("keys", "revoke", name)
    assert again.exit_code == 1
    assert "no valid key" in again.stderr


def test_options_may_stand_before_the_subcommand(breakeven, tmp_path):
    folder = ["--data-dir", str(tmp_path / "data")]
    assert CliRunner().invoke(main, ["keys", *folder, "create", "--role", "operator"]).exit_code == 0
    assert listed(breakeven)[0]["may_force"] is True


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--role", "boss"], "--role"),
        ([], "--role"),
        (["--role", "app", "--rpm", "0"], "--rpm"),
        (["--role", "app", "--tpm", "x"], "--tpm"),
        (["--role", "app", "--name", "a\nb"], "--name"),
    ],
)
def test_wrong_options_are_named(breakeven, arguments, told):
    result = breakeven("keys", "create", *arguments)
    assert result.exit_code == 2
    assert told in result.stderr


def test_check_tells_what_is_missing_and_migrate_makes_it(breakeven, tmp_path):
    missing = breakeven("db", "check")
    assert missing.exit_code == 1
    assert "there is no database" in missing.stderr
    assert not (tmp_path / "data").exists()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "breakeven.db").touch()
    empty = breakeven("db", "check")
    assert empty.exit_code == 1
    assert "0001" in empty.stderr
    assert breakeven("db", "migrate").exit_code == 0
    assert breakeven("db", "check").exit_code == 0
    assert breakeven("db", "tidy").stdout == "0 request rows deleted\n"


def test_an_unreachable_database_is_said_in_one_line(breakeven):
    result = breakeven("keys", "list", "--database-url", "postgresql://x@127.0.0.1:1/y")
    assert result.exit_code == 1
    assert len(result.stderr.splitlines()) == 1
    assert "database" in result.stderr


def test_a_file_where_the_folder_should_be_is_said(breakeven, tmp_path):
    (tmp_path / "data").write_text("")
    assert breakeven("keys", "list").exit_code == 2
