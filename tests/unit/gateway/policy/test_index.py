"""The tables find what testing every rule in turn finds, whatever the conditions."""

from __future__ import annotations

import random
import tracemalloc

import pytest

from gateway.policy import Facts
from gateway.policy import index as index_module
from gateway.policy.conditions import (
    AllOf,
    Always,
    AnyOf,
    Between,
    Condition,
    Flag,
    Header,
    Not,
    OneOf,
    Share,
    Window,
)
from gateway.policy.index import Index
from gateway.policy.match import Matcher, compile_condition
from gateway.policy.rows import TooMany, rows_of
from gateway.policy.schema import Rule
from gateway.policy.trace import holds_for

WORDS = ("", "a", "ab", "abc", "abab", "b", "ba", "a-b", "a[b]", "aa?b", "Straße")
PATTERNS = (*WORDS, "*", "a*", "ab*", "*b", "*ab", "*b*", "a*b", "*a*b*", "a[b*", "*?b", "**", "aaaa*")
NUMBERS = (-1.0, 0.0, 0.2, 0.5, 1.0, 2.0, 7.0)
ZONES = ("UTC", "Europe/Berlin", "Asia/Kolkata")


def some(draw: random.Random) -> tuple[str, ...]:
    return tuple(draw.sample(PATTERNS, draw.randint(1, 3)))


def leaf(draw: random.Random) -> Condition:
    """Any simple condition."""
    low, high = sorted(draw.choices(NUMBERS, k=2))
    return draw.choice([
        lambda: OneOf(draw.choice(["task", "app", "model", "adapter"]), some(draw)),
        lambda: Header(draw.choice(["x-a", "x-b"]), some(draw)),
        lambda: Header(draw.choice(["x-a", "x-b", "x-c"]), (), draw.random() < 0.5),
        lambda: Between(draw.choice(["temperature", "load"]), low, high, draw.random() < 0.5, draw.random() < 0.5),
        lambda: Between("prompt_tokens", low, float("inf"), draw.random() < 0.5),
        lambda: Between("prompt_tokens", float("-inf"), high, high_open=draw.random() < 0.5),
        lambda: Flag(draw.choice(["seed", "images", "stream"]), draw.random() < 0.5),
        lambda: Share(draw.choice([0.0, 0.2, 0.5, 1.0])),
        lambda: Window(tuple(draw.sample(range(7), 3)), *draw.sample(range(0, 1441, 120), 2), draw.choice(ZONES)),
    ])()  # fmt: skip


def tree(draw: random.Random, depth: int) -> Condition:
    """Any condition."""
    if depth == 0 or draw.random() < 0.3:
        return leaf(draw)
    parts = tuple(tree(draw, depth - 1) for _ in range(draw.randint(0, 3)))
    return draw.choice([AllOf(parts), AnyOf(parts), Not(tree(draw, depth - 1)), Always()])


def facts(draw: random.Random) -> Facts:
    names = draw.sample(["x-a", "x-b", "x-z"], draw.randint(0, 3))
    return Facts(
        task=draw.choice(WORDS), app=draw.choice(WORDS), model=draw.choice(WORDS), adapter=draw.choice(WORDS),
        headers={name: draw.choice(WORDS) for name in names}, temperature=draw.choice((*NUMBERS, 0.1, 0.7)),
        prompt_tokens=draw.randint(-2, 9), load=draw.randint(-2, 9), seed=draw.random() < 0.5,
        images=draw.random() < 0.5, stream=draw.random() < 0.5, share=draw.choice([0.0, 0.19, 0.2, 0.4, 0.999]),
        at=1.75e9 + draw.randrange(14 * 86400),
    )  # fmt: skip


def rules_of(draw: random.Random, count: int) -> list[Rule]:
    rules = [
        Rule(f"r{n}", tree(draw, draw.randint(0, 3)), mode=draw.choice(["enforce", "enforce", "observe"]))
        for n in range(count)
    ]
    return [*rules, Rule("last")]


def first(rules: list[Rule], of: Facts, *, enforced: bool) -> str:
    """The rule found by testing each in turn."""
    return next(r.name for r in rules if (r.mode == "enforce" or not enforced) and holds_for(r.when, of))


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_tables_find_what_testing_every_rule_finds(seed: int, small: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if small:
        monkeypatch.setattr(index_module, "_LARGEST", 0)
        monkeypatch.setattr(index_module, "_MOST_ROWS", 8)
    draw = random.Random(seed)
    rules = rules_of(draw, draw.choice([3, 30]))
    matcher = Matcher(rules)
    for _ in range(60):
        asked = facts(draw)
        assert matcher(asked).name == first(rules, asked, enforced=False)
        assert matcher.enforced(asked).name == first(rules, asked, enforced=True)


def test_every_single_rule_is_found_alone() -> None:
    draw = random.Random(7)
    for _ in range(300):
        rule = Rule("r", tree(draw, 2))
        matcher = Matcher([rule, Rule("last")])
        for _ in range(8):
            asked = facts(draw)
            assert (matcher(asked).name == "r") == holds_for(rule.when, asked)


def test_usual_conditions_leave_nothing_to_be_tested() -> None:
    usual = AllOf((
        OneOf("task", ("code",)), OneOf("app", ("a-*", "*-b", "*c*")), Header("x-a", ("t*",)), Header("x-b", (), False),
        Between("load", 1, 8), Share(0.5), Flag("stream", True), Window(), Not(OneOf("model", ("m",))),
        AnyOf((Between("temperature", high=0.5), Flag("seed", True))),
    ))  # fmt: skip
    index = Index([Rule("r", usual), Rule("last")], compile_condition)
    assert [test for test, _ in index.entries] == [None, None, None]


def test_alternatives_are_bounded() -> None:
    either = AnyOf(tuple(Flag("stream", True) for _ in range(4)))
    assert len(rows_of(AllOf((either, either)))) == 16
    with pytest.raises(TooMany):
        rows_of(AllOf((either, either, either)))
    many = AllOf(tuple(AnyOf((OneOf("app", (f"a{n}*",)), Flag("stream", True))) for n in range(40)))
    matcher = Matcher([Rule("r", many), Rule("last")])
    assert matcher(Facts(stream=True)).name == "r"
    assert matcher(Facts()).name == "last"


def test_the_largest_policies_take_bounded_memory() -> None:
    rules = [
        Rule(f"r{n}", AnyOf(tuple(OneOf("app", (f"a{n}-{m}",)) for m in range(16)))) for n in range(1500)
    ]  # fmt: skip
    tracemalloc.start()
    matcher = Matcher([*rules, Rule("last")])
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert used < 30e6
    assert len(matcher._index.entries) <= 8192
    assert [matcher(Facts(app=app)).name for app in ("a0-15", "a1499-3", "b")] == ["r0", "r1499", "last"]


def test_values_that_never_come_again_take_bounded_memory() -> None:
    matcher = Matcher([Rule("r", OneOf("app", ("*x*",))), Rule("h", Header("x-a", ("y*",))), Rule("last")])
    for n in range(10_000):
        asked = Facts(app=f"app-{n}", headers={"x-a": f"{n}y"})
        assert matcher(asked).name == "last"
    assert matcher(Facts(app="x" * 100_000)).name == "r"
    tables = (*matcher._index._facts.values(), matcher._index._headers._by_name["x-a"])
    remembered = [len(table._known) for table in tables]
    assert all(count <= 4096 for count in remembered), remembered


def test_a_minute_is_not_remembered_for_the_next() -> None:
    window = Window(start=600, end=601)
    matcher = Matcher([Rule("r", window), Rule("last")])
    midnight = 1_767_225_600.0  # 2026-01-01T00:00Z
    moments = (599 * 60 + 59, 600 * 60, 600 * 60 + 59.9, 601 * 60)
    seen = [matcher(Facts(at=midnight + second)).name for second in moments]
    assert seen == ["last", "r", "r", "last"]
