"""Which rule a request gets."""

import random
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from gateway.policy import Facts, enforced, facts_of, match, parse_policy, within
from gateway.policy.facts import share_of
from gateway.policy.trace import holds_for
from gateway.types import Classification, GenerateRequest, Identity


def first(when: str, facts: Facts) -> bool:
    """Whether a rule with this condition holds."""
    policy = parse_policy(f"version: 1\nrules:\n  - name: hit\n    when: {when}\n", "p.yaml")
    return match(policy, facts).name == "hit"


BERLIN = datetime(2026, 7, 3, 9, 30, tzinfo=ZoneInfo("Europe/Berlin")).timestamp()  # a Friday


@pytest.mark.parametrize(
    ("when", "hits", "misses"),
    [
        ("{task: code}", Facts(task="code"), Facts(task="chat")),
        ("{task: [code, math]}", Facts(task="math"), Facts(task="chat")),
        ('{task: "c*"}', Facts(task="creative"), Facts(task="math")),
        ('{model: "a[b]?*"}', Facts(model="a[b]?c"), Facts(model="abxc")),
        ("{app: search, task: code}", Facts(app="search", task="code"), Facts(app="ads", task="code")),
        ("{key: k_1}", Facts(key="k_1"), Facts(key="k_2")),
        ('{adapter: ""}', Facts(), Facts(adapter="x")),
        ("{service_tier: flex}", Facts(service_tier="flex"), Facts()),
        ("{endpoint: completions}", Facts(endpoint="completions"), Facts(endpoint="chat")),
        ("{temperature: 0}", Facts(temperature=0.0), Facts(temperature=0.1)),
        ("{temperature: <= 0.5}", Facts(temperature=0.5), Facts(temperature=0.51)),
        ("{temperature: '> 0.5'}", Facts(temperature=0.51), Facts(temperature=0.5)),
        ("{prompt_tokens: 512..2048}", Facts(prompt_tokens=2048), Facts(prompt_tokens=2049)),
        ("{prompt_tokens: {min: 512}}", Facts(prompt_tokens=512), Facts(prompt_tokens=511)),
        ("{load: {min: 2, max: 8}}", Facts(load=8), Facts(load=9)),
        ("{seed: set}", Facts(seed=True), Facts(seed=False)),
        ("{images: false}", Facts(images=False), Facts(images=True)),
        ("{stream: true}", Facts(stream=True), Facts(stream=False)),
        ("{header: {X-Team: [a, 'b*']}}", Facts(headers={"x-team": "bee"}), Facts(headers={"x-team": "c"})),
        ("{header: {x-a: true, x-b: false}}", Facts(headers={"x-a": ""}), Facts(headers={"x-a": "", "x-b": ""})),
        ("{time: 07:00-08:00}", Facts(at=BERLIN), Facts(at=BERLIN + 3600)),
        (
            "{time: {days: mon-fri, hours: 09:00-10:00, zone: Europe/Berlin}}",
            Facts(at=BERLIN),
            Facts(at=BERLIN + 86400),
        ),
        ("{time: {days: thu, hours: 22:00-08:00}}", Facts(at=BERLIN), Facts(at=BERLIN + 86400)),
        ("{time: {days: sat-mon}}", Facts(at=BERLIN + 3 * 86400), Facts(at=BERLIN)),
        ("{share: 5%}", Facts(share=0.049), Facts(share=0.05)),
        ("{any: [{task: code}, {stream: true}]}", Facts(stream=True), Facts()),
        ("{all: [{task: code}, {stream: true}]}", Facts(task="code", stream=True), Facts(stream=True)),
        ("{not: {task: code, stream: true}}", Facts(task="code"), Facts(task="code", stream=True)),
        ("{task: code, not: {any: [{load: 1}, {load: 2}]}}", Facts(task="code", load=3), Facts(task="code", load=2)),
        ("{not: {share: 100%}, task: code}", None, Facts(task="code")),
        ("{}", Facts(), None),
    ],
)
def test_conditions(when: str, hits: Facts | None, misses: Facts | None):
    assert hits is None or first(when, hits)
    assert misses is None or not first(when, misses)


def test_first_rule_wins_and_a_default_closes_the_list():
    policy = parse_policy(
        "version: 1\nrules:\n  - {name: one, when: {task: [code, math]}}\n  - {name: two, when: {stream: true}}\n"
        "  - {name: three, when: {task: code}}\n",
        "p.yaml",
    )
    assert match(policy, Facts(task="code", stream=True)).name == "one"
    assert match(policy, Facts(task="chat", stream=True)).name == "two"
    assert match(policy, Facts(task="chat")).name == "default"


def test_observed_rules_match_but_the_next_one_is_enforced():
    policy = parse_policy(
        "version: 1\nrules:\n  - {name: watch, when: {task: code}, mode: observe}\n  - {name: rest, path: plain}\n",
        "p.yaml",
    )
    assert match(policy, Facts(task="code")).name == "watch"
    assert enforced(policy, Facts(task="code")).name == "rest"
    assert enforced(policy, Facts(task="chat")).name == "rest"


def request_with(body: dict, **values) -> GenerateRequest:
    fields = {
        "request_id": "r1",
        "endpoint": "chat",
        "body": body,
        "model": "base:lora-1",
        "stream": True,
        "include_usage": False,
        "identity": Identity("k_1", "search", "app", False),
        "arrived": 0.0,
        "arrived_at": 5.0,
        "temperature": 0.2,
        "max_tokens": None,
        "headers": {"x-team": "a"},
    }
    return GenerateRequest(**(fields | values))


def test_facts_of_a_request():
    image = {
        "role": "user",
        "content": [{"type": "text", "text": "hi"}, {"type": "image_url", "image_url": {"url": "u"}}],
    }
    body = {"messages": [{"role": "assistant", "content": None}, image], "seed": 0, "service_tier": "flex"}
    facts = facts_of(
        request_with(body), Classification("code", 0.9, "text"), load=3, prompt_tokens=17, conversation="c1"
    )
    assert facts == Facts(
        task="code",
        key="k_1",
        app="search",
        model="base:lora-1",
        adapter="lora-1",
        headers={"x-team": "a"},
        temperature=0.2,
        seed=True,
        prompt_tokens=17,
        images=True,
        stream=True,
        service_tier="flex",
        at=5.0,
        load=3,
        endpoint="chat",
        share=share_of("c1"),
    )


@pytest.mark.parametrize(
    "messages", [None, "x", [None], [{"content": "x"}], [{"content": [None, "y", {"type": "text"}]}], [{}]]
)
def test_facts_of_odd_messages(messages):
    facts = facts_of(request_with({"messages": messages}), Classification("chat", 0.9, "text"), load=0, prompt_tokens=0)
    assert not facts.images


def test_share_is_uniform_and_stable():
    places = [share_of(f"conversation {number}") for number in range(4000)]
    assert abs(sum(place < 0.05 for place in places) / 4000 - 0.05) < 0.015
    assert share_of("x") == share_of("x") != share_of("y")


@pytest.mark.parametrize("numbers", [0.1, 0.9])
@pytest.mark.parametrize("names", [0.1, 0.4])
def test_the_index_finds_what_looking_at_every_rule_finds(numbers: float, names: float):
    """1,000 random requests against 60 random rules, observed ones among them."""
    draw = random.Random(5)
    words = {"task": ["code", "math", "chat"], "app": [f"a{n}" for n in range(9)], "model": ["m", "n"], "key": ["k"]}

    def condition() -> str:
        parts = []
        for key, values in words.items():
            kind = draw.random()
            if kind < names:
                parts.append(f"{key}: [{', '.join(draw.sample(values, draw.randint(1, len(values))))}]")
            elif kind < names + 0.1:
                parts.append(f'{key}: "{draw.choice(values)[0]}*"')
        if draw.random() < 0.3:
            parts.append("not: {app: [a1, a2], task: code}")
        if draw.random() < numbers:
            low = draw.randint(0, 9)
            parts.append(f"load: {draw.choice([f'{low}..{low + draw.randint(0, 5)}', f'<= {low}', repr(f'> {low}')])}")
        if draw.random() < 0.2:
            parts.append(f"header: {{x-a: {draw.choice(['b', 'c', 'true'])}}}")
        return "{" + ", ".join(parts) + "}"

    rules = [f"  - {{when: {condition()}, mode: {draw.choice(['enforce', 'observe'])}}}\n" for _ in range(60)]
    policy = parse_policy("version: 1\nrules:\n" + "".join(rules), "p.yaml")
    for _ in range(1000):
        named = {key: draw.choice([*values, "other"]) for key, values in words.items()}
        headers = draw.choice([{}, {"x-a": "b"}, {"x-a": "z"}])
        facts = Facts(load=draw.randint(-1, 16), headers=headers, **named)
        holding = [rule for rule in policy.rules if holds_for(rule.when, facts)]
        assert match(policy, facts) == holding[0]
        assert enforced(policy, facts) == next(rule for rule in holding if rule.mode == "enforce")


@pytest.mark.parametrize(
    ("found", "declared", "expected"),
    [
        (("code", 0.9, "text"), None, ("code", 0.9, "text")),
        (("code", 0.9, "text"), "ticket", ("ticket", 1.0, "declared")),
        (("math", 0.9, "signal"), None, ("other", 0.9, "fallback")),
        (("math", 0.9, "text"), "unknown", ("other", 0.9, "fallback")),
        (("ticket", 1.0, "declared"), "ticket", ("ticket", 1.0, "declared")),
    ],
)
def test_tasks_are_the_policys_own(found: tuple, declared: str | None, expected: tuple):
    tasks = ("code", "ticket", "other")
    assert within(Classification(*found), tasks, "other", declared) == Classification(*expected)
