"""`breakeven policy test`: files of expected decisions, the gate of a repository of policies."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

if TYPE_CHECKING:
    from gateway.explain import Explanation
    from gateway.policy import Policy
    from gateway.policy.expectations import Case, Expected


class Outcome(NamedTuple):
    """What became of one test."""

    file: str
    line: int
    name: str
    wrong: list[str]
    """`rule: expected 'a', got 'b'`; empty where all is as expected."""
    rules: tuple[str, ...]
    """Rules that held: the one that applies, and observed ones."""


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option("--policy", "path", type=click.Path(path_type=Path), help="Test this policy instead of the files' own.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def test(files: tuple[Path, ...], path: Path | None, as_json: bool) -> None:
    """Run files of expected decisions (folders: every *.yaml in them). Exit 1 if one comes out differently.

    Needs no server: statistics are empty (state no_data) and backends are taken as the policy names them. Says which
    rules no test reached.
    """
    outcomes: list[Outcome] = []
    unreached: dict[str, list[str]] = {}
    for file in _expand(files):
        found, rest = run_file(file, path)
        outcomes += found
        if rest:
            unreached[str(file)] = rest
    failures = [outcome for outcome in outcomes if outcome.wrong]
    if as_json:
        report = {
            "passed": len(outcomes) - len(failures),
            "failed": len(failures),
            "tests": [outcome._asdict() for outcome in outcomes],
            "rules_without_test": unreached,
        }
        click.echo(json.dumps(report, indent=1))
    else:
        for outcome in failures:
            for text in outcome.wrong:
                click.echo(f"{outcome.file}:{outcome.line}:1: error: {outcome.name}: {text}")
        for name, rules in unreached.items():
            click.echo(f"{name}: no test reaches rule {', '.join(repr(rule) for rule in rules)}")
        click.echo(f"{len(outcomes) - len(failures)} passed, {len(failures)} failed")
    if failures or not outcomes:
        raise SystemExit(1)


def _expand(files: tuple[Path, ...]) -> Iterator[Path]:
    for file in files:
        yield from sorted(file.glob("*.yaml")) if file.is_dir() else (file,)


def run_file(file: Path, policy_path: Path | None = None) -> tuple[list[Outcome], list[str]]:
    """Run one file; return the outcomes and the rules that no test reached. Exits with 1 where a file is wrong."""
    from cli.policy.files import read_policy
    from gateway.errors import PolicyError
    from gateway.policy.expectations import parse_expectations
    from gateway.policy.loader import read_text

    try:
        suite = parse_expectations(read_text(file), str(file))
    except PolicyError as error:
        for line in error.diagnostics:
            click.echo(line, err=True)
        raise SystemExit(1) from error
    policy = read_policy(policy_path or file.parent / suite.policy)
    outcomes = [_run(policy, case, str(file)) for case in suite.cases]
    reached = {rule for outcome in outcomes for rule in outcome.rules}
    return outcomes, [rule.name for rule in policy.rules if rule.line and rule.name not in reached]


def _run(policy: Policy, case: Case, file: str) -> Outcome:
    from cli.policy.explain import explain_locally

    try:
        found = explain_locally(policy, json.dumps(case.request).encode(), case.around)
    except click.ClickException as error:
        return Outcome(file, case.line, case.name, [f"the request is not valid: {error.message}"], ())
    return Outcome(file, case.line, case.name, list(_differences(case.expect, found)), (found.rule, *found.observed))


def _differences(expected: Expected, found: Explanation) -> Iterator[str]:
    for key in ("rule", "task", "arm", "path", "state", "owner"):
        wanted, got = getattr(expected, key), getattr(found, key)
        if wanted is not None and wanted != got:
            yield f"{key}: expected {wanted!r}, got {got!r} ({found.reason})"
    for pattern in expected.allows:
        if not _named(pattern, found.arms):
            yield f"allows: {pattern!r} is not among {', '.join(found.arms) or 'no arm'}"
    for pattern in expected.denies:
        for arm in _named(pattern, found.arms):
            yield f"denies: {arm!r} is allowed by rule {found.rule!r}"
    for rule in expected.observes:
        if rule not in found.observed:
            yield f"observes: rule {rule!r} does not hold in mode observe"
    if expected.veto is not None and expected.veto not in "; ".join(found.vetoes):
        yield f"veto: {expected.veto!r} is not among {'; '.join(found.vetoes) or 'no vetoes'}"
    if expected.refused is not None and expected.refused != (found.refused is not None):
        yield f"refused: expected {expected.refused}, got {found.reason}"


def _named(pattern: str, arms: list[str]) -> list[str]:
    from gateway.policy.schema import arm_matches
    from gateway.types import Arm

    return [arm for arm in arms if arm_matches(pattern, Arm.parse(arm))]
