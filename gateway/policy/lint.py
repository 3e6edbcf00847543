"""Conditions that cannot hold, rules that can never apply, and rules that disagree about the same requests. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from gateway.policy.boxes import Box, TooComplex, Words, boxes
from gateway.policy.checks import at
from gateway.policy.conditions import FLAG_KEYS, AllOf, AnyOf, Condition, Not, Share
from gateway.policy.diagnostics import Findings, shorten
from gateway.policy.nodes import Mapping
from gateway.policy.schema import Rule

BUDGET = 60_000
"""Comparisons of boxes per policy: what keeps the check of thousands of odd rules within a fraction of a second."""


Literals = list[tuple[str, list[str]]]
"""Facts with the words that a box allows for them, the most telling first."""


@dataclass(slots=True)
class _Earlier:
    """Boxes of the rules before, found by a word that they name."""

    by_word: dict[tuple[str, str], list[tuple[Box, Rule]]] = field(default_factory=lambda: defaultdict(list))
    general: list[tuple[Box, Rule]] = field(default_factory=list)
    forced: list[tuple[Box, Rule]] = field(default_factory=list)
    left: int = BUDGET

    def add(self, box: Box, words: Literals, rule: Rule) -> None:
        """Remember a box."""
        for key, values in words[:1]:
            for value in values:
                self.by_word[key, value].append((box, rule))
        if not words:
            self.general.append((box, rule))
        if rule.path != "auto":
            self.forced.append((box, rule))

    def near(self, words: Literals) -> Iterator[tuple[Box, Rule]]:
        """Yield the boxes that may contain one with these words."""
        yield from self._spend(self.general)
        for key, values in words:
            yield from self._spend(self.by_word.get((key, values[0]), []))

    def meeting(self, words: Literals, path: str) -> Iterator[tuple[Box, Rule]]:
        """Yield the boxes that may meet one with these words and would be a surprise to a rule that takes `path`."""
        yield from self._spend(self.general)
        for key, values in words:
            for value in values:
                yield from self._spend(self.by_word.get((key, value), []))
        if path != "auto":
            yield from self._spend([entry for entry in self.forced if entry[1].path != path])

    def _spend(self, entries: list[tuple[Box, Rule]]) -> Iterator[tuple[Box, Rule]]:
        """Yield entries as long as the budget lasts."""
        for entry in entries:
            self.left -= 1
            if self.left < 0:
                return
            yield entry


def _literals(box: Box) -> Literals:
    """Return the keys of a box that name nothing but literal words, the most telling first."""
    found = [
        (key in FLAG_KEYS, key == "task", len(domain.allowed), key, sorted(domain.allowed))
        for key, domain in box.domains.items()
        if isinstance(domain, Words) and domain.allowed is not None and "*" not in "".join(domain.allowed)
    ]
    return [(key, words) for *_, key, words in sorted(found)]


def lint(rules: Sequence[tuple[Mapping, Rule]], tasks: tuple[str, ...], findings: Findings) -> None:
    """Note contradictions as errors, unreachable and overlapping rules as warnings."""
    earlier = _Earlier()
    for node, rule in rules:
        try:
            union = [_with_tasks(box, tasks) for box in boxes(rule.when)]
        except TooComplex:
            continue
        pairs = [(box, _literals(box)) for box in union if not box.empty]
        if not pairs:
            _never(node, rule, findings)
            continue
        covering = _covering(pairs, earlier)
        if covering is not None:
            names = ", ".join(
                f"{shorten(name)} (line {line})" for name, line in sorted(covering, key=lambda one: one[1])[:4]
            )
            findings.warning(
                node.position, f"rule {shorten(rule.name)} is never reached: {names} above takes all of its requests"
            )
            continue
        _overlap(node, rule, pairs, earlier, findings)
        if rule.mode == "enforce":
            for box, words in pairs:
                earlier.add(box, words, rule)
        if earlier.left < 0:
            findings.warning(node.position, "too many rules to look for unreachable and overlapping ones from here on")
            return


def _with_tasks(box: Box, tasks: tuple[str, ...]) -> Box:
    """Write the tasks of a box out: the taxonomy is finite."""
    words = box.domains.get("task", None)
    if not isinstance(words, Words):
        return box
    return Box({**box.domains, "task": Words(frozenset(task for task in tasks if words.holds(task)))}, box.others)


def _never(node: Mapping, rule: Rule, findings: Findings) -> None:
    if _has_empty_share(rule.when):
        findings.warning(at(node, "when"), f"rule {shorten(rule.name)} holds for 0% of conversations")
    else:
        findings.error(
            at(node, "when"), f"contradiction: no request can satisfy the conditions of rule {shorten(rule.name)}"
        )


def _has_empty_share(condition: Condition) -> bool:
    match condition:
        case AllOf(parts) | AnyOf(parts):
            return any(_has_empty_share(part) for part in parts)
        case Not(part):
            return _has_empty_share(part)
        case Share(share):
            return share in (0, 1)
    return False


def _covering(pairs: list[tuple[Box, Literals]], earlier: _Earlier) -> set[tuple[str, int]] | None:
    """Return the earlier rules (name, line) that together take all of the boxes, or None if something is left."""
    by: set[tuple[str, int]] = set()
    for box, words in pairs:
        found = _covered(box, words, earlier, len(FLAG_KEYS) + 1)
        if found is None:
            return None
        by |= found
    return by


def _covered(box: Box, words: Literals, earlier: _Earlier, depth: int) -> set[tuple[str, int]] | None:
    for other, rule in earlier.near(words):
        if box.within(other):
            return {(rule.name, rule.line)}
    parts = _split(box, words, earlier) if depth else []
    by: set[tuple[str, int]] = set()
    for part in parts:
        found = _covered(part, _literals(part), earlier, depth - 1)
        if found is None:
            return None
        by |= found
    return by or None


def _split(box: Box, words: Literals, earlier: _Earlier) -> list[Box]:
    """Cut a box along its tasks, else along a yes/no fact that earlier rules look at."""
    tasks = box.domains.get("task")
    if isinstance(tasks, Words) and tasks.allowed and len(tasks.allowed) > 1:
        return [Box({**box.domains, "task": Words(frozenset({task}))}, box.others) for task in sorted(tasks.allowed)]
    for key in FLAG_KEYS:
        if key not in box.domains and any(key in other.domains for other, _ in earlier.near(words)):
            values = (Words(frozenset({"true"})), Words(None, frozenset({"true"})))
            return [Box({**box.domains, key: value}, box.others) for value in values]
    return []


def _overlap(
    node: Mapping, rule: Rule, pairs: list[tuple[Box, Literals]], earlier: _Earlier, findings: Findings
) -> None:
    """Warn once if an earlier rule takes a part of this rule's requests by what looks like a slip."""
    for box, words in pairs:
        for other, before in earlier.meeting(words, rule.path):
            key = _crossing(box, other, before, rule)
            if key is not None:
                findings.warning(
                    at(node, "when"),
                    f"rule {shorten(rule.name)} overlaps rule {shorten(before.name)} (line {before.line}) in {key}: "
                    "requests that satisfy both follow the earlier one; narrow one of them, or order them on purpose",
                )
                return


def _crossing(box: Box, other: Box, before: Rule, rule: Rule) -> str | None:
    """Return the facts in which two disagreeing rules overlap by halves, or None where they do not."""
    if (before.path, before.arms, before.draft_lengths) == (rule.path, rule.arms, rule.draft_lengths):
        return None
    if box.others or other.others or other.within(box) or box.meet(other).empty:
        return None
    shared = [
        key
        for key in box.domains.keys() & other.domains.keys()
        if not box.domains[key].within(other.domains[key])  # type: ignore[arg-type]  # equal keys, equal kinds
        and not other.domains[key].within(box.domains[key])  # type: ignore[arg-type]  # as above
    ]
    if shared:
        return ", ".join(sorted(shared))
    forced = {before.path, rule.path} == {"plain", "speculative"}
    return " and ".join(sorted(box.domains.keys() | other.domains.keys())) if forced else None
