"""`breakeven policy check` and `schema`: is this file a policy, and is everything in it meant?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from cli.policy.files import default_policy
from cli.policy.lifecycle import kept_policy
from cli.storage import storage_options


@click.command()
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
@click.option("--strict", is_flag=True, help="Warnings fail as well.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a file.")
@storage_options
def check(
    files: tuple[Path, ...], strict: bool, as_json: bool, data_dir: Path | None, database_url: str | None
) -> None:
    """Check policy files; findings are FILE:LINE:COL: error: ... Exit 1 if a file cannot be used.

    Without FILES the policy in force in the database named, else the file that serve would start with.
    """
    failed = False
    kept = None if files else kept_policy(data_dir, database_url)
    for path in files or (Path(kept[1]) if kept else default_policy(),):
        result = _check(path, kept[2] if kept else None)
        failed |= not result["ok"] or (strict and bool(result["findings"]))
        if as_json:
            click.echo(json.dumps(result))
            continue
        for line in result["findings"]:
            click.echo(line)
        if result["ok"]:
            click.echo(f"{path}: ok, {result['rules']} rules, {result['backends']} backends, hash {result['hash']}")
    if failed:
        raise SystemExit(1)


def _check(path: Path, text: str | None) -> dict[str, Any]:
    """Check the file at `path`, or `text` under its name."""
    from gateway.errors import PolicyError
    from gateway.policy import load_policy, parse_policy

    try:
        policy = load_policy(path) if text is None else parse_policy(text, str(path))
    except PolicyError as error:
        return {"file": str(path), "ok": False, "findings": error.diagnostics}
    return {
        "file": str(path),
        "ok": True,
        "findings": list(policy.warnings),
        "hash": policy.hash,
        "rules": len(policy.rules),
        "backends": len(policy.backends),
    }


@click.command()
def schema() -> None:
    """Print the JSON Schema of policy files (shipped as policies/schema.json)."""
    from gateway.policy.jsonschema import policy_schema

    click.echo(json.dumps(policy_schema(), indent=1, ensure_ascii=False))
