"""Contradictions, unreachable rules and overlaps; and that a box never claims too much."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import PolicyError
from gateway.policy import Facts, parse_policy
from gateway.policy.boxes import ABSENT, Box, TooComplex, Words, boxes
from gateway.policy.conditions import AllOf, AnyOf, Between, Condition, Flag, Header, Not, OneOf, Share
from gateway.policy.match import compile_condition

HEAD = "version: 1\nbackends: {e: {url: 'http://h:1/', arms: [plain, ngram-k2, ngram-k4]}}\nrules:\n"


def warnings(*rules: str) -> list[str]:
    return list(parse_policy(HEAD + "".join(f"  - {rule}\n" for rule in rules), "p.yaml").warnings)


@pytest.mark.parametrize(
    ("rules", "place", "by"),
    [
        (["{path: plain}", "{name: late, when: {task: code}}"], "5:5", "'rule-1' (line 4)"),
        (["{when: {task: [code, math]}}", "{name: late, when: {task: code, stream: true}}"], "5:5", "'rule-1'"),
        (
            ["{when: {task: code}}", "{when: {task: math}}", "{name: late, when: {task: [math, code]}}"],
            "6:5",
            "'rule-1'",
        ),
        (["{when: {stream: true}}", "{when: {stream: false}}", "{name: late, when: {app: x}}"], "6:5", "'rule-2'"),
        (["{when: {not: {task: chat}}}", "{name: late, when: {task: 'c*', not: {task: chat}}}"], "5:5", "'rule-1'"),
        (["{when: {temperature: <= 1}}", "{name: late, when: {temperature: 0..0.5}}"], "5:5", "'rule-1'"),
        (["{when: {header: {x-a: true}}}", "{name: late, when: {header: {x-a: [b, c]}}}"], "5:5", "'rule-1'"),
        (["{when: {share: 20%}}", "{name: late, when: {share: 5%}}"], "5:5", "'rule-1'"),
        (["{when: {any: [{task: code}, {load: 3}]}}", "{name: late, when: {load: 3, app: a}}"], "5:5", "'rule-1'"),
    ],
)
def test_unreachable_rules(rules: list[str], place: str, by: str):
    (warning,) = warnings(*rules)
    assert warning.startswith(f"p.yaml:{place}: warning: rule 'late' is never reached")
    assert by in warning


@pytest.mark.parametrize(
    "rules",
    [
        ["{when: {task: code}, mode: observe}", "{when: {task: code}}"],
        ["{when: {task: code, stream: true}}", "{when: {task: code}}"],
        ["{when: {share: 5%}}", "{when: {share: 20%}}"],
        ["{when: {time: 08:00-18:00}}", "{when: {time: 09:00-10:00}}"],
        ["{when: {temperature: '< 1'}}", "{when: {temperature: <= 1}}"],
        ["{when: {model: 'a*'}}", "{when: {model: '*b'}}"],
        ["{when: {header: {x-a: b}}}", "{when: {header: {x-a: true}}}"],
        ["{when: {app: x}}", "{when: {task: code}}"],
    ],
)
def test_rules_that_are_reached(rules: list[str]):
    assert warnings(*rules) == []


@pytest.mark.parametrize(
    ("rules", "facts"),
    [
        (["{when: {task: [code, math]}, path: plain}", "{when: {task: [math, chat]}}"], "in task"),
        (["{when: {prompt_tokens: 0..512}, arms: plain}", "{when: {prompt_tokens: 512..900}}"], "in prompt_tokens"),
        (["{when: {app: x}, path: plain}", "{when: {task: code}, path: speculative}"], "in app and task"),
    ],
)
def test_overlaps(rules: list[str], facts: str):
    (warning,) = warnings(*rules)
    assert warning.startswith("p.yaml:5:12: warning: rule 'rule-2' overlaps rule 'rule-1' (line 4)")
    assert facts in warning


@pytest.mark.parametrize(
    "when",
    [
        "{task: code, all: [{task: math}]}",
        "{temperature: 0, all: [{temperature: '> 0'}]}",
        "{stream: true, not: {stream: true}}",
        "{header: {x-a: true}, not: {any: [{header: {x-a: [b]}}, {header: {x-a: true}}]}}",
        "{time: 08:00-09:00, not: {time: 08:00-09:00}}",
        "{not: {}}",
    ],
)
def test_conditions_that_cannot_hold(when: str):
    with pytest.raises(PolicyError, match=r"^p\.yaml:4:12: error: contradiction"):
        warnings(f"{{when: {when}}}")


def test_a_share_of_nothing_is_only_a_warning():
    (warning,) = warnings("{name: stage, when: {share: 0%}}")
    assert "'stage' holds for 0% of conversations" in warning


def test_many_odd_rules_end_in_bounded_time():
    draw = random.Random(3)
    rules = [
        f"{{when: {{temperature: {draw.random():.4f}..{1 + draw.random():.4f}, load: {n}..{n + 900}}}}}"
        for n in range(900)
    ]
    assert any("too many rules" in warning for warning in warnings(*rules))


def test_too_many_alternatives_are_not_looked_at():
    one = AnyOf(tuple(OneOf("app", (str(n),)) for n in range(9)))
    two = AnyOf(tuple(OneOf("model", (str(n),)) for n in range(9)))
    with pytest.raises(TooComplex):
        boxes(AllOf((one, two)))


WORDS = st.sampled_from(["code", "chat", "co*", "*t", "c*"])
LEAVES = st.one_of(
    st.builds(OneOf, st.sampled_from(["task", "app"]), st.lists(WORDS, min_size=1, max_size=3).map(tuple)),
    st.builds(Flag, st.sampled_from(["stream", "seed"]), st.booleans()),
    st.builds(Header, st.just("x-a"), st.lists(WORDS, max_size=2).map(tuple), st.just(True)),
    st.builds(Header, st.just("x-a"), st.just(()), st.just(False)),
    st.builds(Share, st.sampled_from([0.0, 0.3, 1.0])),
    st.builds(
        lambda low, size, *ends: Between("load", low, low + size, *ends),
        st.integers(0, 3),
        st.integers(0, 2),
        st.booleans(),
        st.booleans(),
    ),
)
CONDITIONS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(Not, inner),
        st.builds(AllOf, st.lists(inner, min_size=1, max_size=3).map(tuple)),
        st.builds(AnyOf, st.lists(inner, min_size=1, max_size=3).map(tuple)),
    ),
    max_leaves=6,
)
REQUESTS = [
    Facts(task=task, app=app, stream=stream, seed=seed, load=load, share=share, headers=headers)
    for task, app in [("code", "chat"), ("chat", "co"), ("cost", "code"), ("x", "x")]
    for stream, seed in [(True, False), (False, True)]
    for load in range(6)
    for share in (0.0, 0.3)
    for headers in ({}, {"x-a": "code"}, {"x-a": "z"})
]


def inside(box: Box, facts: Facts) -> bool:
    """Whether a request lies in a box, computed from the box alone."""
    for key, domain in box.domains.items():
        if isinstance(domain, Words):
            value = facts.headers.get(key[7:], ABSENT) if key.startswith("header ") else getattr(facts, key)
            if not domain.holds(value if isinstance(value, str) else str(value).lower()):
                return False
        else:
            value = getattr(facts, key)
            if not domain.meet(type(domain)(value, value)) or domain.meet(type(domain)(value, value)).empty:
                return False
    return all((compile_condition(other) or (lambda _: True))(facts) is sign for sign, other in box.others)


@settings(max_examples=150, deadline=None)
@given(CONDITIONS)
def test_boxes_say_what_the_compiled_condition_says(condition: Condition):
    try:
        union = boxes(condition)
    except TooComplex:
        return
    test = compile_condition(condition) or (lambda _: True)
    for facts in REQUESTS:
        assert test(facts) == any(inside(box, facts) for box in union)


@settings(max_examples=150, deadline=None)
@given(CONDITIONS, CONDITIONS)
def test_containment_is_never_claimed_falsely(one: Condition, two: Condition):
    try:
        left, right = boxes(one), boxes(two)
    except TooComplex:
        return
    for small in left:
        for large in right:
            if small.within(large):
                assert not any(inside(small, facts) and not inside(large, facts) for facts in REQUESTS)
            if small.meet(large).empty:
                assert not any(inside(small, facts) and inside(large, facts) for facts in REQUESTS)


@pytest.mark.parametrize(
    ("rule", "place", "says"),
    [
        ("{mode: observe, store: {prompts: 5%}}", "4:28", "store has no effect with mode: observe"),
        ("{mode: observe, audit: 1%}", "4:28", "audit has no effect with mode: observe"),
        ("{arms: ngram, audit: 1%}", "4:26", "audit has no effect: the arms of this rule are all speculative"),
        ("{store: {retention: 3d}}", "4:25", "retention has no effect while no prompts are stored"),
    ],
)
def test_keeping_that_keeps_nothing_is_pointed_out(rule: str, place: str, says: str):
    (warning,) = warnings(rule, "{}")[:1] if "observe" in rule else warnings(rule)
    assert warning.startswith(f"p.yaml:{place}: warning: {says}")
