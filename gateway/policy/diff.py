"""What changes between two policies in meaning: formatting, comments and moved text do not count. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from gateway.policy.conditions import Condition
from gateway.policy.describe import condition_text, value_text
from gateway.policy.schema import BackendConfig, Policy, Rule, Task

Kind = Literal["added", "removed", "changed", "moved"]


class Change(msgspec.Struct, frozen=True):
    """One difference."""

    kind: Kind
    what: str
    """`rule 'json first'`, `backend engine`, `classifier`, …"""
    key: str = ""
    before: str = ""
    after: str = ""

    def __str__(self) -> str:
        if self.kind == "changed":
            return f"changed  {self.what}: {self.key} {self.before} -> {self.after}"
        if self.kind == "moved":
            return f"moved    {self.what}: {self.before} -> {self.after}"
        return f"{self.kind:8} {self.what}{f': {self.after or self.before}' if self.after or self.before else ''}"


def diff(old: Policy, new: Policy) -> list[Change]:
    """Return the differences in the order of a policy file; none if both decide the same way."""
    changes = list(_named("task", _by_name(old.tasks), _by_name(new.tasks)))
    changes += _fields("classifier", old.classifier, new.classifier)
    changes += _named("backend", _by_name(old.backends), _by_name(new.backends))
    pairs, removed, added = _pair(old.rules, new.rules)
    changes += [Change("removed", f"rule {rule.name!r}", before=condition_text(rule.when)) for rule in removed]
    changes += [Change("added", f"rule {rule.name!r}", after=condition_text(rule.when)) for rule in added]
    for before, after in pairs:
        changes += _fields(f"rule {after.name!r}", before, after)
    return changes + list(_moves(pairs, old.rules, new.rules))


def _by_name(items: Sequence[Task] | Sequence[BackendConfig]) -> dict[str, Task | BackendConfig]:
    return {item.name: item for item in items}


def _named(what: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    """Compare entries that are known by name; their order means nothing."""
    for name, before in old.items():
        if name not in new:
            yield Change("removed", f"{what} {name}")
        else:
            yield from _fields(f"{what} {name}", before, new[name])
    for name in new:
        if name not in old:
            yield Change("added", f"{what} {name}")


def _fields(what: str, before: msgspec.Struct, after: msgspec.Struct, prefix: str = "") -> Iterator[Change]:
    """Compare two structs key by key, down to the leaves."""
    old, new = msgspec.structs.asdict(before), msgspec.structs.asdict(after)
    for key, was in old.items():
        now = new[key]
        if was == now or (key == "line" and not prefix):
            continue
        if key == "name":
            yield Change("changed", what, "name", was, now)
        elif isinstance(was, Condition):
            yield Change("changed", what, "when", f"({condition_text(was)})", f"({condition_text(now)})")
        elif isinstance(was, msgspec.Struct) and type(was) is type(now):
            yield from _fields(what, was, now, f"{prefix}{key}.")
        elif key == "api_key":
            yield Change("changed", what, "api_key", "(hidden)", "(hidden)")
        else:
            yield Change("changed", what, prefix + key, value_text(key, was), value_text(key, now))


def _pair(old: Sequence[Rule], new: Sequence[Rule]) -> tuple[list[tuple[Rule, Rule]], list[Rule], list[Rule]]:
    """Find each rule's counterpart: by name, else (renamed or unnamed ones) by an equal condition and equal content."""
    by_name = {rule.name: rule for rule in old if not _numbered(rule)}
    found: dict[str, Rule] = {}
    rest: list[Rule] = []
    for rule in new:
        match = None if _numbered(rule) else by_name.pop(rule.name, None)
        if match is None:
            rest.append(rule)
        else:
            found[rule.name] = match
    left = [rule for rule in old if _numbered(rule) or rule.name in by_name]
    for rule in rest:
        match = next((other for other in left if _alike(rule, other)), None)
        match = match or next((other for other in left if rule.when == other.when), None)
        if match is not None:
            left.remove(match)
            found[rule.name] = _renamed(match, rule)
    pairs = [(found[rule.name], rule) for rule in new if rule.name in found]
    return pairs, left, [rule for rule in new if rule.name not in found]


def _numbered(rule: Rule) -> bool:
    """Whether the loader gave the rule its name, by its place."""
    return rule.name.startswith("rule-") and rule.name[5:].isdecimal()


def _alike(one: Rule, other: Rule) -> bool:
    return msgspec.structs.replace(one, name="", line=0) == msgspec.structs.replace(other, name="", line=0)


def _renamed(before: Rule, after: Rule) -> Rule:
    """Let a rule that never had a name of its own take the new one: that is no change."""
    return msgspec.structs.replace(before, name=after.name) if _numbered(before) and _numbered(after) else before


def _moves(pairs: list[tuple[Rule, Rule]], old: Sequence[Rule], new: Sequence[Rule]) -> Iterator[Change]:
    """Yield rules whose order among those that both policies have has changed: the fewest that explain it."""
    lines = {(rule.line, rule.name): place for place, rule in enumerate(old)}
    places = [lines.get((before.line, before.name), _place_of(before, old)) for before, _ in pairs]
    kept = _longest_ascending(places)
    for index, (_, after) in enumerate(pairs):
        if index not in kept:
            was, now = places[index] + 1, new.index(after) + 1
            yield Change("moved", f"rule {after.name!r}", "order", f"place {was}", f"place {now}")


def _place_of(rule: Rule, rules: Sequence[Rule]) -> int:
    return next(place for place, other in enumerate(rules) if other.line == rule.line)


def _longest_ascending(places: list[int]) -> set[int]:
    """Return the indices of a longest ascending subsequence (patience sorting)."""
    tails: list[int] = []
    heads: list[int] = []
    before: list[int] = []
    for index, place in enumerate(places):
        at = bisect_left(tails, place)
        tails[at:], heads[at:] = [place, *tails[at + 1 :]], [index, *heads[at + 1 :]]
        before.append(heads[at - 1] if at else -1)
    kept: set[int] = set()
    index = heads[-1] if heads else -1
    while index >= 0:
        kept.add(index)
        index = before[index]
    return kept
