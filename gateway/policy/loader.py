"""Policy text → `Policy`, or PolicyError with every finding as `FILE:LINE:COL: error: …`.

Called at start, on reload and by the CLI. Pure, but for `load_policy`, which reads two files at most.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from gateway.errors import PolicyError
from gateway.policy import checks, lint, nodes
from gateway.policy.conditions import Always
from gateway.policy.diagnostics import Findings, Position, shorten
from gateway.policy.kinds import Context, Wrong
from gateway.policy.language import POLICY, TAXONOMY_FILE
from gateway.policy.match import Matcher
from gateway.policy.schema import BackendConfig, ClassifierConfig, Policy, Rule, Task
from gateway.types import DEFAULT_TASKS

MAX_FILE = 2 * 1024 * 1024
HASH_DIGITS = 12
ENGINE_URL = "http://127.0.0.1:8100"
"""Where a policy without `backends` looks for the engine, unless `BREAKEVEN_ENGINE_URL` says otherwise."""
Resolve = Callable[[str], str]
"""Returns the text of a file that a policy names. Raises OSError or PolicyError."""


def load_policy(path: Path, *, env: Mapping[str, str] | None = None) -> Policy:
    """Read and check a policy file. Raises PolicyError."""
    return parse_policy(read_text(path), str(path), env=env, resolve=lambda name: read_text(path.parent / name))


def read_text(path: Path) -> str:
    """Read a file of bounded size as UTF-8. Raises PolicyError."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE + 1)
    except OSError as error:
        raise PolicyError([f"{path}:1:1: error: cannot read the file: {error.strerror or error}"]) from error
    if len(data) > MAX_FILE:
        raise PolicyError([f"{path}:1:1: error: the file is larger than {MAX_FILE // 1024} KiB"])
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        line, column = before.count(b"\n") + 1, error.start - before.rfind(b"\n")
        raise PolicyError([f"{path}:{line}:{column}: error: not UTF-8: byte 0x{data[error.start]:02x}"]) from error


def parse_policy(
    text: str, name: str, *, env: Mapping[str, str] | None = None, resolve: Resolve | None = None
) -> Policy:
    """Check a policy's text; `name` stands for it in findings.

    `env` (default: the process's environment) fills in `${BREAKEVEN_…}`; `resolve` reads a tasks file that the policy
    names (default: none may be named). Raises PolicyError.
    """
    with _collector_paused():
        return _parse(text, name, env, resolve)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Keep the garbage collector from walking the growing tree again and again: that would double the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _parse(text: str, name: str, env: Mapping[str, str] | None, resolve: Resolve | None) -> Policy:
    findings = Findings(name)
    root = nodes.compose(text, findings)
    if root is None:
        raise PolicyError(findings.lines())
    text, root = _inline_tasks(text, root, findings, resolve)
    context = Context(findings, os.environ if env is None else env)
    try:
        top, values = POLICY.read(root, context)
    except Wrong:
        raise PolicyError(findings.lines()) from None
    findings.raise_if_failed()
    values["engine"] = BackendConfig("engine", urls=(context.env.get("BREAKEVEN_ENGINE_URL") or ENGINE_URL,))
    return _build(text, name, top, values, findings)


def content_hash(text: str) -> str:
    """Return the policy's name in headers and `If-Match`: the first 12 hex digits of the SHA-256 of its text."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:HASH_DIGITS]


def _build(text: str, name: str, top: nodes.Mapping, values: dict[str, Any], findings: Findings) -> Policy:
    """Put the sections together and check what holds between them. Raises PolicyError."""
    tasks: tuple[Task, ...] = tuple(task for _, task in values.get("tasks") or ())
    tasks = tasks or tuple(Task(task) for task in DEFAULT_TASKS)
    classifier = ClassifierConfig(**{"fallback_task": tasks[-1].name} | values.get("classifier", {}))
    backends: list[tuple[nodes.Node, BackendConfig]] = values.get("backends") or [(top, values["engine"])]
    rules = _rules(values.get("rules", ()))
    plain_backends = tuple(backend for _, backend in backends)
    if tasks_differ(tasks) and classifier.artefact is None:
        known = (
            "the shipped classifier does not know all of these tasks: name one trained on them (classifier.artefact)"
        )
        findings.warning(checks.at(top, "tasks"), f"{known}, or let applications declare them (x-breakeven-task)")
    checks.check_classifier(top, classifier, tasks, findings)
    checks.check_backends(backends, findings)
    checks.check_rules(rules, tasks, plain_backends, findings)
    findings.raise_if_failed()
    lint.lint(rules, tuple(task.name for task in tasks), findings)
    findings.raise_if_failed()
    every = complete(tuple(rule for _, rule in rules))
    return Policy(
        name=name,
        text=text,
        hash=content_hash(text),
        tasks=tasks,
        classifier=classifier,
        backends=plain_backends,
        rules=every,
        warnings=tuple(findings.lines()),
        matcher=Matcher(every),
    )


def tasks_differ(tasks: tuple[Task, ...]) -> bool:
    """Return whether a taxonomy has a task that the shipped one has not."""
    return not {task.name for task in tasks} <= set(DEFAULT_TASKS)


def _rules(entries: tuple[tuple[nodes.Mapping, dict[str, Any]], ...]) -> list[tuple[nodes.Mapping, Rule]]:
    """Give every rule a name and its line."""
    return [
        (node, Rule(**({"name": f"rule-{number}"} | values), line=node.position.line))
        for number, (node, values) in enumerate(entries, start=1)
    ]


def complete(rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
    """Append a default rule where the last one may not hold."""
    if rules and isinstance(rules[-1].when, Always) and rules[-1].mode == "enforce":
        return rules
    taken = {rule.name for rule in rules}
    return (*rules, Rule(name="default" if "default" not in taken else "implicit-default"))


def _inline_tasks(text: str, root: nodes.Node, findings: Findings, resolve: Resolve | None) -> tuple[str, nodes.Node]:
    """Replace `tasks: FILE` by the tasks in it, on the same line, so that text and hash are complete in themselves."""
    node = root.get("tasks") if isinstance(root, nodes.Mapping) else None
    if not isinstance(node, nodes.Scalar) or node.text == "default" or not node.text.endswith((".yaml", ".yml")):
        return text, root
    tasks = _read_tasks(node, findings, resolve)
    inline = json.dumps(tasks, ensure_ascii=False, separators=(", ", ": "))
    span = node.span
    text = f"{text[: span.start]}{inline}{text[span.stop :]}"
    replaced = nodes.compose(text, findings)
    if replaced is None:
        raise PolicyError(findings.lines())
    return text, replaced


def _read_tasks(node: nodes.Scalar, findings: Findings, resolve: Resolve | None) -> list[dict[str, Any]]:
    """Read the taxonomy that a policy names. Raises PolicyError."""
    path = PurePosixPath(node.text)
    if path.is_absolute() or ".." in path.parts:
        findings.error(
            node.position, f"expected a file in the policy's own folder or below it, found {shorten(node.text)}"
        )
    if resolve is None:
        findings.error(node.position, "this policy was sent without its tasks file; write the tasks into the policy")
    if resolve is None or findings.failed:
        raise PolicyError(findings.lines())
    try:
        text = resolve(node.text)
    except (OSError, PolicyError) as error:
        findings.error(node.position, f"cannot read tasks: {str(error).splitlines()[0]}")
        raise PolicyError(findings.lines()) from error
    tasks = sorted_tasks(text, node.text)
    return [{key: value for key, value in msgspec.to_builtins(task).items() if value} for task in tasks]


def sorted_tasks(text: str, name: str) -> tuple[Task, ...]:
    """Read a tasks file (`version`, `tasks`, `fallback`, `signals`), its fallback last. Raises PolicyError."""
    findings = Findings(name)
    root = nodes.compose(text, findings)
    if root is None:
        raise PolicyError(findings.lines())
    try:
        top, values = TAXONOMY_FILE.read(root, Context(findings, {}))
    except Wrong:
        raise PolicyError(findings.lines()) from None
    tasks = tuple(task for _, task in values["tasks"])
    fallback = values.get("fallback", tasks[-1].name)
    if fallback not in [task.name for task in tasks]:
        findings.error(checks.at(top, "fallback"), f"unknown task {shorten(fallback)}")
    findings.raise_if_failed()
    return tuple(sorted(tasks, key=lambda task: task.name == fallback))


__all__ = ["Position", "complete", "content_hash", "load_policy", "parse_policy", "read_text", "sorted_tasks"]
