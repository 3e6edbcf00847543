"""`breakeven backends check`: which servers a policy names, what will be measured there, and whether paths agree."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cli.policy.files import default_policy, read_policy

if TYPE_CHECKING:
    from gateway.lossless.pairs import PairResult
    from gateway.lossless.survey import Server
    from gateway.policy import Policy


@click.group()
def backends() -> None:
    """Look at the servers behind the gateway."""


@backends.command()
@click.option("--policy", "path", type=click.Path(path_type=Path), help="Policy file; else the one serve starts with.")
@click.option("--audit/--no-audit", default=True, show_default=True, help="Compare answers of both paths.")
@click.option("--prompts", default=4, show_default=True, type=click.IntRange(1, 48), help="Greedy prompts per arm.")
@click.option("--max-tokens", default=32, show_default=True, type=click.IntRange(1, 4096), help="Length of answers.")
@click.option("--patience", default=5.0, show_default=True, type=click.FloatRange(0.1, 600), help="Seconds to answer.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def check(  # noqa: PLR0917  # click passes by name
    path: Path | None, audit: bool, prompts: int, max_tokens: int, patience: float, as_json: bool
) -> None:
    """Connect to the backends of a policy; say engine, version and what will be measured; compare both paths.

    The audit sends greedy prompts on the plain and on each speculative arm of the same model and compares the answers,
    message against message. Exit code 1 where a server does not answer, or answers differ beyond rounding.
    """
    import msgspec

    policy = read_policy(path or default_policy())
    quiet = as_json or not sys.stderr.isatty()
    found = asyncio.run(_check(policy, prompts if audit else 0, max_tokens, patience, quiet=quiet))
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=1).decode())
    else:
        click.echo(to_text(found))
    if not found["ok"]:
        raise SystemExit(1)


async def _check(policy: Policy, prompts: int, max_tokens: int, patience: float, *, quiet: bool) -> dict[str, Any]:
    """Survey every server, then audit. Returns what `--json` prints."""
    from cli.demo.workload import interleave, load_prompts
    from gateway.backends.make import make_backend
    from gateway.errors import SettingsError
    from gateway.lossless.pairs import audit_pairs
    from gateway.lossless.survey import survey
    from gateway.settings import Settings

    try:
        how = Settings.from_env().backends
    except SettingsError as error:
        raise click.ClickException(str(error)) from error
    make = partial(
        make_backend, token=how.engine_token, keepalive=how.keepalive_s, poll=how.poll_s, secret=secrets.token_bytes(32)
    )
    async with contextlib.AsyncExitStack() as stack:
        servers: list[tuple[str, str, Any]] = []
        for config in policy.backends:
            for url in config.urls:
                alone = make(_of_one(config, url))
                stack.push_async_callback(alone.aclose)
                await alone.start()
                servers.append((url, config.kind, alone))
        found = await asyncio.gather(*(survey(server, url, kind, patience) for url, kind, server in servers))
        audited: list[PairResult] = []
        if prompts:
            up = {server.name: server for _, _, server in reversed(servers) if server.state().healthy}
            messages = [each.messages for each in interleave(load_prompts(), 6)[:prompts]]
            dtypes = {each.backend: each.dtype for each in found}
            tell: Callable[[str], None] = _silent if quiet else _tell
            audited = await audit_pairs(up, messages, max_tokens=max_tokens, dtypes=dtypes, progress=tell)
            tell("")
    ok = all(each.reachable for each in found) and all(each.ok for each in audited)
    return {"ok": ok, "policy": policy.hash, "name": policy.name, "servers": found, "audits": audited}


def _of_one(config: Any, url: str) -> Any:  # noqa: ANN401  # a BackendConfig, imported lazily
    import msgspec

    return msgspec.structs.replace(config, urls=(url,))


def _silent(_: str) -> None:
    return


def _tell(line: str) -> None:
    """Show progress on one line."""
    click.echo(f"\r\x1b[K{line}", nl=False, err=True)


def to_text(found: dict[str, Any]) -> str:
    """Return what was found, for a terminal."""
    lines: list[str] = []
    for server in found["servers"]:
        lines += [*_server_lines(server), ""]
    for result in found["audits"]:
        lines += _audit_lines(result)
    if not found["audits"]:
        lines.append("no audit: no speculative arm with a plain arm of the same model answers")
    return "\n".join(lines)


def _server_lines(server: Server) -> list[str]:
    head = f"{server.backend}  {server.url}  kind {server.kind}"
    if not server.reachable:
        return [f"{head}: NOT REACHABLE: {server.detail}"]
    what = f"{server.engine or 'an engine that does not say which'} {server.version}".rstrip()
    window = f", window {server.window}" if server.window else ""
    more = "".join(f", {name} {value}" for name, value in (("dtype", server.dtype), ("draft", server.draft)) if value)
    lines = [head, f"  engine        {what}", f"  model         {server.model}{window}{more}"]
    lines.append(f"  arms          {', '.join(server.arms) or 'none that the policy names'}")
    lines += [f"  measured      {line}" for line in server.measured]
    lines += [f"  not measured  {line}" for line in server.not_measured]
    return lines + [f"  warning       {line}" for line in server.warnings]


def _audit_lines(result: PairResult) -> list[str]:
    parts = [f"{result.equal} of {result.compared} equal"]
    named = (("near tie", result.near_tie), ("DIFFERENT", result.different), ("unexplained", result.unexplained))
    parts += [f"{count} {name}" for name, count in named if count]
    parts += [f"{result.failed} FAILED ({result.error})"] if result.failed else []
    seen = f"acceptance {result.acceptance or 'unknown'}"
    if result.drafted:
        seen += f" ({result.accepted} of {result.drafted} draft tokens)"
    lines = [f"audit {result.arm} against {result.plain}: {', '.join(parts)}; {seen}"]
    for parted in result.parted:
        verdict = parted.verdict
        gap = "gap unknown" if verdict.gap is None else f"gap {verdict.gap:.4f} (tie up to {result.tie:g})"
        where = f"{verdict.field or 'the answer'} at character {verdict.position}"
        lines.append(f"  prompt {parted.prompt}: {verdict.outcome.replace('_', ' ')}, {where}, {gap}")
    return lines
