"""Whatever a client sends: never an exception, always the same answer, a task of the taxonomy, in bounded time."""

import random
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.classify import Classifier
from gateway.classify.prompt import read_prompt
from gateway.classify.window import LIMIT, window_of
from gateway.types import DEFAULT_TASKS

CLASSIFIER = Classifier.load()
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=20,
)
FIELDS = (
    "messages",
    "prompt",
    "tools",
    "functions",
    "tool_choice",
    "response_format",
    "prediction",
    "metadata",
    "role",
)
MESSAGE = st.fixed_dictionaries({}, optional={"role": JSON | st.sampled_from(["user", "tool"]), "content": JSON})
BODY = st.dictionaries(st.sampled_from(FIELDS), JSON | st.lists(MESSAGE | JSON, max_size=6), max_size=6)


def same(body, **options):
    one, two = CLASSIFIER.classify(body, **options), CLASSIFIER.classify(body, **options)
    assert (one.task, one.confidence, one.source, one.signals) == (two.task, two.confidence, two.source, two.signals)
    assert one.task in DEFAULT_TASKS
    assert 0 < one.confidence <= 1
    return one


@settings(max_examples=60, deadline=None)
@given(BODY, st.none() | st.text(max_size=20))
def test_any_json_body_is_classified(body, declared):
    same(body, declared=declared)


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet=st.characters(), max_size=300))
def test_any_text_is_classified(text):
    same({"prompt": text})


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["upper", "lower", "title", "swapcase"]))
def test_case_of_the_text_changes_nothing(how):
    text = "Please translate this letter into Dutch: the parcel has not arrived yet."
    assert CLASSIFIER.classify({"prompt": getattr(text, how)()}).task == "translation"


@pytest.mark.parametrize(
    "text", ["\ud800\udfff broken", "e\u0301crire un poe\u0300me", "\u202ewrite a poem", "\x00" * 50]
)
def test_odd_unicode(text):
    same({"prompt": text})


def test_typos_seldom_change_the_task():
    prompts = [
        ("Translate the following sentence into Spanish: the library is closed on Monday.", "translation"),
        ("Write a Python function which removes duplicates from a list and keeps the order.", "code"),
        (
            "Summarize this article in three bullet points: The ferry company announced new prices today.",
            "summarization",
        ),
        ("Write a poem about the first snow in a small town.", "creative"),
        ("What is the best way to learn to swim as an adult?", "chat"),
    ]
    rng = random.Random(7)
    kept = total = 0
    for text, task in prompts:
        for _ in range(20):
            chars = list(text)
            for _ in range(3):
                i = rng.randrange(len(chars) - 1)
                chars[i], chars[i + 1] = chars[i + 1], chars[i]
            kept += CLASSIFIER.classify({"prompt": "".join(chars)}).task == task
            total += 1
    assert kept >= 0.9 * total


JUNK = {
    "letters": "x" * 1_000_000,
    "spaces": " " * 1_000_000,
    "braces": "{" * 1_000_000,
    "emoji": "\U0001f600" * 250_000,
    "han": "汉" * 330_000,
    "lines": "a b\n" * 250_000,
    "quotes": "\"'`" * 330_000,
    "nul": "\x00" * 1_000_000,
}


@pytest.mark.parametrize("kind", JUNK)
def test_a_megabyte_of_junk(kind):
    found = same({"prompt": JUNK[kind]})
    assert found.signals["chars"] == len(JUNK[kind])


def test_only_a_capped_part_is_read():
    for size in (10, 5_000, 1_000_000):
        turns = [("system", "s"), ("user", "b"), ("assistant", "r"), ("user", "u")]
        body = {"messages": [{"role": role, "content": letter * size} for role, letter in turns]}
        window = window_of(read_prompt(body))
        assert len(window.text) <= LIMIT
        assert len(window.turn) <= LIMIT
        same(body)
    assert len(window.text) == LIMIT


def test_the_same_in_another_process_with_other_hash_seeds():
    code = (
        "from gateway.classify import Classifier;"
        "v = Classifier.load().classify({'prompt': 'Übersetze: guten Morgen'}); print(v.task, v.confidence)"
    )
    answers = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(answers) == 1


def test_serving_imports_neither_scikit_learn_nor_scipy_nor_yaml_files():
    code = "import sys; from gateway.classify import Classifier; Classifier.load(); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"sklearn", "scipy", "torch", "litestar"} & set(loaded)
