"""docs/policies.md: every YAML and console example does what the page says, and every key is on it."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from cli.policy import policy as command
from cli.policy.expect import run_file
from gateway.errors import PolicyError
from gateway.policy import parse_policy
from gateway.policy.kinds import ListOf, Off, Record
from gateway.policy.language import BACKENDS, POLICY, TASKS
from gateway.policy.when import FACTS

ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs" / "policies.md").read_text(encoding="utf-8")
BLOCKS = [
    (PAGE[: found.start()].count("\n") + 1, found[1], found[2])
    for found in re.finditer(r"^```([a-z ]+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
]
HASH = re.compile(r"\b[0-9a-f]{12}\b")


def blocks(kind: str) -> list:
    return [pytest.param(index, id=f"line {line}") for index, (line, info, _) in enumerate(BLOCKS) if info == kind]


@pytest.mark.parametrize("index", blocks("yaml"))
def test_policies_are_valid(index: int):
    assert parse_policy(BLOCKS[index][2], "policy.yaml", env={}).warnings == ()


@pytest.mark.parametrize("index", blocks("yaml error") + blocks("yaml warning"))
def test_findings_are_the_ones_shown(index: int):
    try:
        found = list(parse_policy(BLOCKS[index][2], "policy.yaml", env={}).warnings)
    except PolicyError as error:
        found = error.diagnostics
    assert BLOCKS[index + 1][1] == "text"
    assert found == BLOCKS[index + 1][2].splitlines()


@pytest.mark.parametrize("index", blocks("yaml tests"))
def test_tests_pass(index: int, tmp_path: Path):
    file = tmp_path / "tests.yaml"
    file.write_text(BLOCKS[index][2], encoding="utf-8")
    outcomes, _ = run_file(file, ROOT / "policies" / "rollout.yaml")
    assert outcomes
    assert [outcome.wrong for outcome in outcomes] == [[]] * len(outcomes)


@pytest.mark.parametrize("index", blocks("console"))
def test_commands_print_what_is_shown(index: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    first, _, shown = BLOCKS[index][2].partition("\n")
    assert first.startswith("$ breakeven policy ")
    result = CliRunner().invoke(command, first.removeprefix("$ breakeven policy ").split())
    pieces = [re.escape(HASH.sub("HASH", piece)) for piece in shown.split("...\n")]
    assert re.fullmatch(".*?".join(pieces), HASH.sub("HASH", result.output), re.DOTALL), result.output
    assert result.exit_code == 0


def keys(record: Record, prefix: str = "") -> list[str]:
    found = []
    for name, key in record.keys.items():
        found.append(prefix + name)
        kind = key.kind.kind if isinstance(key.kind, Off) else key.kind
        if isinstance(kind, Record):
            found += keys(kind, f"{name}.")
        elif isinstance(kind, ListOf) and isinstance(kind.kind, Record):
            found += keys(kind.kind)
    return found


def test_every_key_is_described():
    known = set(keys(POLICY)) | set(keys(TASKS.record)) | set(keys(BACKENDS.record)) | set(FACTS)
    known -= {f"classifier.{name}" for name in ("artefact", "threshold", "fallback_task")}
    missing = sorted(name for name in known if f"| `{name}` |" not in PAGE)
    assert missing == []
