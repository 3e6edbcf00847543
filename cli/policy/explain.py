"""`breakeven policy explain`: signals → rule → vetoes → numbers → arm, for one request body."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cli.policy.files import default_policy, read_policy
from cli.policy.lifecycle import kept_policy
from cli.policy.remote import Remote, remote_options
from cli.storage import storage_options

if TYPE_CHECKING:
    from gateway.classify import Classifier
    from gateway.explain import Explanation, SavedSnapshot
    from gateway.policy import Policy

ASSUMED = (
    "no backend was asked: each is taken as healthy, with all the arms that the policy names, and without statistics"
)


@click.command()
@click.argument("body", type=click.File("rb"), metavar="REQUEST.json")
@click.option("--policy", "path", type=click.Path(path_type=Path), help="Policy file; else the one serve starts with.")
@click.option("--snapshot", type=click.Path(path_type=Path), help="Saved statistics (see --save-snapshot).")
@click.option("--save-snapshot", type=click.Path(path_type=Path), help="With --url: keep the statistics in this file.")
@click.option("--task", help="As if declared by x-breakeven-task.")
@click.option("--app", help="Name of the API key.")
@click.option("--key-id", help="Id of the API key.")
@click.option("--header", "-H", "headers", multiple=True, metavar="NAME=VALUE", help="A request header.")
@click.option("--load", type=click.IntRange(0), help="Sequences running on the backends.")
@click.option("--prompt-tokens", type=click.IntRange(0), help="Length of the prompt; else estimated.")
@click.option("--at", help="Time of arrival, ISO 8601; else now.")
@click.option("--share", type=click.FloatRange(0, 100, max_open=True), help="The conversation's place, in percent.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@remote_options
@storage_options
def explain(  # noqa: PLR0917  # click passes by name
    body: Any,  # noqa: ANN401  # click's file
    path: Path | None,
    snapshot: Path | None,
    save_snapshot: Path | None,
    as_json: bool,
    url: str | None,
    api_key: str | None,
    data_dir: Path | None,
    database_url: str | None,
    **around: Any,  # noqa: ANN401  # options read by _circumstances
) -> None:
    """Explain what happens to the request in REQUEST.json (- for standard input).

    Without --url nothing is asked: backends are taken as the policy names them and, unless --snapshot is given, nothing
    is known of them (state no_data). With --url a running gateway answers, for its own policy or for --policy. With
    --data-dir and no --policy it is the policy in force in that database.
    """
    import msgspec

    raw = body.read()
    circumstances = _circumstances(**around)
    if url is not None:
        if snapshot is not None:
            raise click.UsageError("--snapshot and --url exclude each other")
        found = _remote(Remote(url, api_key), raw, circumstances, path, save_snapshot)
    elif save_snapshot is not None:
        raise click.UsageError("--save-snapshot needs --url: only a running gateway has statistics")
    else:
        chosen = None if path is not None else _in_force(data_dir, database_url)
        found = explain_locally(chosen or read_policy(path or default_policy()), raw, circumstances, snapshot)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=1).decode())
    else:
        click.echo(to_text(found))


def _in_force(data_dir: Path | None, database_url: str | None) -> Policy | None:
    """Return the policy in force in a database, where one was named and has any. Raises ClickException."""
    from gateway.errors import PolicyError
    from gateway.policy import parse_policy

    kept = kept_policy(data_dir, database_url)
    if kept is None:
        return None
    _, name, text = kept
    try:
        return parse_policy(text, name)
    except PolicyError as error:
        raise click.ClickException(str(error)) from error


def _circumstances(  # noqa: PLR0917  # given by name
    task: str | None,
    app: str | None,
    key_id: str | None,
    headers: tuple[str, ...],
    load: int | None,
    prompt_tokens: int | None,
    at: str | None,
    share: float | None,
) -> dict[str, Any]:
    """Return the options as `Circumstances` in JSON values. Raises BadParameter."""
    named: dict[str, str] = {}
    for header in headers:
        name, equals, value = header.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"expected NAME=VALUE, found {header!r}", param_hint="--header")
        named[name.lower()] = value
    try:
        moment = datetime.fromisoformat(at) if at else None
    except ValueError as error:
        raise click.BadParameter(
            f"expected a time such as 2026-07-03T09:30, found {at!r}", param_hint="--at"
        ) from error
    if moment is not None and moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    values = {
        "task": task,
        "app": app,
        "key": key_id,
        "header": named,
        "load": load,
        "prompt_tokens": prompt_tokens,
        "at": moment.timestamp() if moment else None,
        "share": None if share is None else share / 100,
    }
    return {name: value for name, value in values.items() if value is not None}


def explain_locally(policy: Policy, raw: bytes, around: dict[str, Any], snapshot: Path | None = None) -> Explanation:
    """Explain without a server. Raises ClickException where body, circumstances or snapshot are wrong."""
    from gateway.api.explaining import circumstances_of, request_to_explain
    from gateway.errors import ApiError
    from gateway.explain import assumed_states
    from gateway.explain import explain as explanation
    from gateway.policy import within
    from gateway.routing.snapshot import empty_snapshot

    try:
        circumstances = circumstances_of(around)
        request, tokens = request_to_explain(raw, circumstances)
    except ApiError as error:
        raise click.ClickException(error.message) from error
    if circumstances.task is not None and circumstances.task not in policy.task_names:
        known = ", ".join(policy.task_names)
        raise click.ClickException(f"unknown task {circumstances.task!r}; expected one of {known}")
    if snapshot is not None:
        saved = read_snapshot(snapshot)
        statistics, states = saved.restore(policy), {state.name: state for state in saved.states}
        assumed: list[str] = []
    else:
        statistics, states = empty_snapshot(), assumed_states(policy, request.model)
        assumed = [ASSUMED]
    seen = _classifier(policy).classify(
        request.body,
        declared=circumstances.task,
        threshold=policy.classifier.threshold,
        fallback=policy.classifier.fallback_task,
    )
    seen = within(seen, policy.task_names, policy.classifier.fallback_task, circumstances.task)
    return explanation(
        policy,
        request,
        seen,
        statistics,
        states,
        prompt_tokens=tokens,
        load=circumstances.load,
        share=circumstances.share,
        assumed=assumed,
    )


@cache
def _load_classifier(artefact: Path | None) -> Classifier:
    from gateway.classify import Classifier
    from gateway.errors import ArtefactError

    try:
        return Classifier.load(artefact)
    except ArtefactError as error:
        raise click.ClickException(str(error)) from error


def _classifier(policy: Policy) -> Classifier:
    return _load_classifier(Path(policy.classifier.artefact) if policy.classifier.artefact else None)


def read_snapshot(path: Path) -> SavedSnapshot:
    """Read saved statistics. Raises ClickException."""
    import msgspec

    from gateway.explain import SavedSnapshot

    try:
        return msgspec.json.decode(path.read_bytes(), type=SavedSnapshot)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise click.ClickException(f"{path}: not a saved snapshot: {error}") from error


def _remote(remote: Remote, raw: bytes, around: dict[str, Any], policy: Path | None, save: Path | None) -> Explanation:
    """Let a running gateway explain; keep its statistics where asked to. Raises ClickException."""
    import msgspec

    from gateway.explain import Explanation

    try:
        body = msgspec.json.decode(raw)
    except msgspec.DecodeError as error:
        raise click.ClickException(f"the request is not valid JSON: {error}") from error
    if save is not None:
        save.write_bytes(remote.call("GET", "/v1/policy/snapshot").body)
    asked = {"request": body, "with": around}
    if policy is not None:
        asked["policy"] = read_policy(policy).text
    answer = remote.call("POST", "/v1/policy/explain", asked)
    return msgspec.json.decode(answer.body, type=Explanation)


def to_text(found: Explanation) -> str:
    """Return an explanation for people, in the order in which the decision was made."""
    facts = found.facts
    lines = [
        (
            "request",
            f"{facts.endpoint}, model {facts.model}, temperature {facts.temperature:g}, "
            f"about {facts.prompt_tokens} prompt tokens, load {facts.load}",
        ),
        ("signals", ", ".join(f"{name}={value}" for name, value in found.signals.items()) or "none"),
        ("task", f"{found.task} (confidence {found.confidence:.2f}, by {found.source})"),
        ("policy", f"{found.policy_name} ({found.policy})"),
    ]
    for step in found.rules:
        sign = "+" if step.holds else "-"
        note = " [observed only]" if step.holds and step.mode == "observe" else ""
        lines.append(("", f"{sign} {step.rule}{f' (line {step.line})' if step.line else ''}: {step.because}{note}"))
    lines.append(("rule", f"{found.rule}{f', owner {found.owner}' if found.owner else ''}"))
    lines += [("", text) for text in found.says]
    lines.append(("arms", ", ".join(found.arms) or "none"))
    lines.append(("vetoes", "; ".join(found.vetoes) or "none"))
    lines.append(("numbers", ", ".join(f"{name} {_shown(value)}" for name, value in found.numbers.items()) or "none"))
    lines.append(("state", found.state))
    lines.append(("arm", found.arm or "none"))
    lines.append(("reason", found.reason))
    lines.append(("stored", found.stored))
    if found.priority is not None:
        lines.append(("priority", f"{found.priority}, sent with the request"))
    lines += [("observed", f"{rule}: {reason}") for rule, reason in found.observed.items()]
    lines += [("assumed", text) for text in found.assumed]
    return "\n".join(f"{label:9} {text}".rstrip() for label, text in lines)


def _shown(value: object) -> str:
    if value is None:
        return "unknown"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
