"""Differences in meaning."""

from gateway.policy import parse_policy
from gateway.policy.diff import diff

HEAD = "version: 1\nbackends: {e: {url: 'http://h:1/', arms: [plain, ngram-k2, ngram-k4], api_key: one}}\n"
BASE = (
    HEAD
    + """
rules:
  - {name: a, when: {task: code}, probe: 5%}
  - {name: b, when: {task: math}, p99: {metric: itl, budget: 80ms}}
  - {name: c, when: {task: chat}}
  - when: {stream: true}
    draft_lengths: [2]
"""
)


def changes(new: str, old: str = BASE) -> list[str]:
    return [" ".join(str(change).split()) for change in diff(parse_policy(old, "a"), parse_policy(new, "b"))]


def test_layout_comments_and_spelling_do_not_count():
    same = "# comment\n" + BASE.replace(
        "{name: a, when: {task: code}, probe: 5%}", "probe: 0.05\n    name: a\n    when: {task: [code]}"
    )
    assert changes(same) == []


def test_values_are_shown_as_written():
    new = (
        BASE.replace("5%", "3%")
        .replace("80ms", "1.5s")
        .replace("[2]", "[2, 4]")
        .replace("api_key: one", "api_key: two")
    )
    assert changes(new) == [
        "changed backend e: api_key (hidden) -> (hidden)",
        "changed rule 'a': probe 5% -> 3%",
        "changed rule 'b': p99.budget 80ms -> 1.5s",
        "changed rule 'rule-4': draft_lengths [2] -> [2, 4]",
    ]


def test_rules_added_removed_renamed_and_unnamed_ones_that_slide():
    new = BASE.replace("  - {name: b, when: {task: math}, p99: {metric: itl, budget: 80ms}}\n", "").replace(
        "name: c", "name: d"
    )
    new += "  - {name: e, when: {load: '> 8'}}\n"
    assert changes(new) == [
        "removed rule 'b': task is math",
        "added rule 'e': load > 8",
        "changed rule 'd': name c -> d",
    ]


def test_order_counts_and_the_fewest_moves_are_named():
    lines = BASE.splitlines(keepends=True)
    at = next(index for index, line in enumerate(lines) if "name: a" in line)
    moved = "".join(lines[:at] + lines[at + 1 : at + 3] + [lines[at]] + lines[at + 3 :])
    assert changes(moved) == ["moved rule 'a': place 1 -> place 3"]


def test_condition_tasks_and_p99_switched_off():
    new = BASE.replace("task: chat", "any: [{task: chat}, {temperature: 0}]").replace(
        ", p99: {metric: itl, budget: 80ms}", ""
    )
    new = new.replace("version: 1", "version: 1\ntasks: [code, math, chat, prose]\nclassifier: {fallback_task: chat}")
    found = changes(new)
    assert "added task prose" in found
    assert "removed task creative" in found
    assert "changed rule 'c': when (task is chat) -> (task is chat, or temperature = 0)" in found
    assert any(line.startswith("changed rule 'b': p99 {metric: itl, window: 10m, budget: 80ms") for line in found)


def test_thousands_of_rules():
    rules = [f"  - {{name: r{number}, when: {{app: a{number}}}}}\n" for number in range(1500)]
    old = HEAD + "rules:\n" + "".join(rules)
    new = HEAD + "rules:\n" + "".join(rules[1:] + rules[:1])
    assert changes(new, old) == ["moved rule 'r0': place 1 -> place 1500"]
