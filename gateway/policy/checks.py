"""What must hold between the sections of a policy: names that exist, arms that can be taken, no contradictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from gateway.policy.conditions import AllOf, AnyOf, Condition, Not, OneOf
from gateway.policy.diagnostics import Findings, Position, shorten, suggest
from gateway.policy.nodes import Mapping, Node, Scalar
from gateway.policy.nodes import Sequence as SequenceNode
from gateway.policy.schema import BackendConfig, ClassifierConfig, Rule, Task, arm_matches
from gateway.types import Arm

METHODS_KNOWN = ("ngram", "suffix", "draft_model", "eagle", "hybrid")
MOST_VIEWS = 8
"""Sets of confidence, half-life and minimum of requests that one policy may name: each has statistics of its own."""
Pair = tuple[Mapping, Rule]


@dataclass(frozen=True, slots=True)
class Offer:
    """What the backends of a policy offer to its rules."""

    names: list[str]
    arms: list[Arm]
    open: list[str]
    """Backends with `arms: auto`, whose arms are not known before they answer."""


def at(node: Node, *keys: str) -> Position:
    """Return the position of a value below a node, or the nearest one there is."""
    for key in keys:
        below = node.get(key) if isinstance(node, Mapping) else None
        if below is None:
            break
        node = below
    return node.position


def check_classifier(top: Mapping, classifier: ClassifierConfig, tasks: Sequence[Task], findings: Findings) -> None:
    """The fallback task must exist."""
    names = [task.name for task in tasks]
    if classifier.fallback_task not in names:
        where = at(top, "classifier", "fallback_task")
        findings.error(
            where, f"unknown task {shorten(classifier.fallback_task)}{suggest(classifier.fallback_task, names)}"
        )


def check_backends(backends: Sequence[tuple[Node, BackendConfig]], findings: Findings) -> None:
    """Each backend has a URL, and one of ours or of a pool has arms that make sense for it."""
    for node, backend in backends:
        if not backend.urls:
            findings.error(node.position, f"backend {backend.name}: the key 'url' is missing (its base URL)")
        if isinstance(backend.arms, tuple):
            _check_arms(node, backend, backend.arms, findings)
        if backend.api_key is not None and not _from_environment(node):
            findings.warning(at(node, "api_key"), "a token written into the file; use ${BREAKEVEN_…}")


def _from_environment(node: Node) -> bool:
    value = node.get("api_key") if isinstance(node, Mapping) else None
    return isinstance(value, Scalar) and "${" in value.text


def _check_arms(node: Node, backend: BackendConfig, arms: tuple[Arm, ...], findings: Findings) -> None:
    for arm in arms:
        if arm.k and arm.method not in METHODS_KNOWN:
            findings.warning(
                at(node, "arms"), f"unknown method {shorten(arm.method)}{suggest(arm.method, METHODS_KNOWN)}"
            )
    if backend.kind != "engine" and len(arms) > 1:
        findings.error(
            at(node, "arms"),
            f"a {backend.kind} server has one arm, fixed at launch; found {len(arms)} (make the other pool a backend)",
        )


def check_rules(
    rules: Sequence[Pair], tasks: Sequence[Task], backends: Sequence[BackendConfig], findings: Findings
) -> None:
    """Check every rule on its own, and their names together."""
    names = [task.name for task in tasks]
    offer = Offer(
        names=[backend.name for backend in backends],
        arms=[arm for backend in backends if isinstance(backend.arms, tuple) for arm in backend.arms],
        open=[backend.name for backend in backends if backend.arms == "auto"],
    )
    seen: dict[str, int] = {}
    for node, rule in rules:
        if rule.name in seen:
            findings.error(
                at(node, "name"), f"duplicate rule name {shorten(rule.name)}: first given at line {seen[rule.name]}"
            )
        seen.setdefault(rule.name, rule.line)
        _check_tasks(node, rule.when, names, findings)
        _check_patterns(node, rule, offer, findings)
        if not findings.failed:
            _check_arms_left(node, rule, offer, findings)
            _check_audit(node, rule, offer, findings)
        _check_sense(node, rule, findings)
    _check_views(rules, findings)


def _check_views(rules: Sequence[Pair], findings: Findings) -> None:
    """The thresholds that shape statistics come in few sets, so that refreshing them stays cheap."""
    sets: set[tuple[float, float, int]] = set()
    for node, rule in rules:
        own = rule.break_even
        wanted = (own.confidence, own.half_life, own.min_requests)
        if wanted not in sets and len(sets) == MOST_VIEWS:
            why = f"a policy may name {MOST_VIEWS} different sets of confidence, half_life and min_requests"
            findings.error(at(node, "break_even"), f"{why}; this rule's is one more: give it that of another rule")
            return
        sets.add(wanted)


def _check_tasks(node: Mapping, condition: Condition, names: list[str], findings: Findings) -> None:
    """Every task that a condition names must be in the taxonomy."""
    match condition:
        case AllOf(parts) | AnyOf(parts):
            for part in parts:
                _check_tasks(node, part, names, findings)
        case Not(part):
            _check_tasks(node, part, names, findings)
        case OneOf("task", values):
            for value in values:
                if "*" not in value and value not in names:
                    where = _scalar_position(node.get("when"), value) or at(node, "when")
                    findings.error(where, f"unknown task {shorten(value)}{suggest(value, names)}")


def _scalar_position(node: Node | None, text: str) -> Position | None:
    """Find where a value stands below a node."""
    if isinstance(node, Scalar):
        return node.position if node.text == text else None
    below: list[Node] = []
    if isinstance(node, SequenceNode):
        below = node.items
    elif isinstance(node, Mapping):
        below = [value for _, value in node.items]
    return next((found for found in (_scalar_position(child, text) for child in below) if found), None)


def _check_patterns(node: Mapping, rule: Rule, offer: Offer, findings: Findings) -> None:
    """Every pattern in `arms` must name something."""
    for pattern in rule.arms or ():
        where = _scalar_position(node.get("arms"), pattern) or at(node, "arms")
        backend, slash, _ = pattern.rpartition("/")
        if slash and "*" not in backend and backend not in offer.names:
            findings.error(where, f"unknown backend {shorten(backend)}{suggest(backend, offer.names)}")
        elif any(arm_matches(pattern, arm) for arm in offer.arms):
            continue
        elif not offer.open or (slash and "*" not in backend and backend not in offer.open):
            labels = [str(arm) if slash else arm.label for arm in offer.arms]
            findings.error(where, f"no arm is called {shorten(pattern)}{suggest(pattern, dict.fromkeys(labels))}")


def _check_arms_left(node: Mapping, rule: Rule, offer: Offer, findings: Findings) -> None:
    """Some arm must be left after `path`, `arms` and `draft_lengths`."""
    if offer.open or any(rule.allows(arm) for arm in offer.arms):
        return
    wider = msgspec.structs.replace(rule, draft_lengths=None)
    key = "draft_lengths" if any(wider.allows(arm) for arm in offer.arms) else "arms" if rule.arms else "path"
    parts = [f"path: {rule.path}"]
    parts += [f"arms: {', '.join(rule.arms)[:80]}"] if rule.arms else []
    parts += [f"draft_lengths: {', '.join(map(str, rule.draft_lengths))[:80]}"] if rule.draft_lengths else []
    findings.error(at(node, key), f"contradiction: rule {shorten(rule.name)} allows no arm at all ({'; '.join(parts)})")


def _check_audit(node: Mapping, rule: Rule, offer: Offer, findings: Findings) -> None:
    """An audit compares two paths: `arms` must list both."""
    if not rule.audit or offer.open:
        return
    paths = {arm.path for arm in offer.arms if rule.lists(arm)}
    if len(paths) == 1:
        why = f"audit has no effect: the arms of this rule are all {next(iter(paths))}; two paths are compared"
        findings.warning(at(node, "audit"), why)


def _check_sense(node: Mapping, rule: Rule, findings: Findings) -> None:
    """Keys that contradict each other, or do nothing beside each other."""
    if rule.path == "plain":
        if rule.draft_lengths:
            findings.error(at(node, "draft_lengths"), "contradiction: path: plain drafts nothing; remove draft_lengths")
        for key in ("break_even", "p99", "probe", "zero_accept_alarm"):
            if node.get(key) is not None:
                findings.warning(at(node, key), f"{key} has no effect with path: plain")
    elif rule.path == "speculative" and node.get("probe") is not None and rule.probe > 0:
        findings.warning(at(node, "probe"), "probing plain is not possible with path: speculative; use path: auto")
    if rule.p99 is not None and rule.p99.budget is None and rule.p99.max_ratio_to_plain is None:
        findings.error(
            at(node, "p99"), "p99: expected budget (such as 80ms), max_ratio_to_plain (such as 1.1), or both"
        )
    stored = node.get("store")
    if isinstance(stored, Mapping) and stored.get("retention") is not None and rule.store.prompts == 0:
        findings.warning(at(stored, "retention"), "retention has no effect while no prompts are stored")
    if rule.mode == "observe" and rule.store.prompts:
        why = "store has no effect with mode: observe; the rule that applies says what is kept"
        findings.warning(at(node, "store"), why)
    if rule.mode == "observe" and rule.audit:
        why = "audit has no effect with mode: observe; the rule that applies says what is audited"
        findings.warning(at(node, "audit"), why)
    if isinstance(node.get("when"), Mapping) and rule.mode == "observe" and rule.path != "auto" and rule.probe == 0:
        findings.warning(at(node, "mode"), "observing a forced path records nothing new; use path: auto")
