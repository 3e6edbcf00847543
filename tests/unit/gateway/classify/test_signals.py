"""Structural facts of a turn."""

import msgspec
import pytest

from gateway.classify.features import Read
from gateway.classify.prompt import Prompt, read_prompt
from gateway.classify.signals import FLAGS, NUMBERS, facts_key, facts_of
from gateway.classify.window import window_of


def measured(text):
    prompt = read_prompt({"prompt": text})
    return prompt, Read.of(prompt, window_of(prompt)).shape


def shape(text):
    return measured(text)[1]


def test_code_and_math_marks():
    code = shape("fix:\n```python\ndef f(x):\n    return x == 1\n```")
    assert code.fences == 2
    assert code.code_marks >= 3
    assert shape("integrate \\frac{1}{x^2} ≤ 3").math_marks >= 3
    assert shape("how are you").code_marks == shape("how are you").math_marks == 0


@pytest.mark.parametrize(
    ("text", "script"),
    [
        ("hello", "latin"),
        ("привет, как дела", "cyrillic"),
        ("请翻译这句话", "han"),
        ("この文章を要約してください", "kana"),
        ("이 글을 요약해줘", "hangul"),
        ("कविता लिखो", "devanagari"),
        ("اكتب قصيدة", "arabic"),
        ("γράψε ένα ποίημα", "greek"),
        ("เขียนกลอน", "thai"),
    ],
)
def test_script(text, script):
    assert shape(text).script == script


def test_copyable_is_what_surrounds_no_instruction():
    assert shape("What is love?").copyable == 0
    pasted = shape("Summarise.\n" + "Some words of a long text. " * 60)
    assert pasted.copyable > 0.6


def test_ends_sentences_quotes_and_lists():
    found = shape('He said: "Go." She went. Nobody saw.\n- one\n- two\nWhy?')
    assert (found.asks, found.questions, found.quotes, found.items, found.open_end) == (True, 1, 2, 2, False)
    assert shape("Question: who?\nAnswer:").open_end


def test_facts_have_the_model_s_width_and_are_small():
    facts = facts_of(*measured("x" * 1_000_000))
    assert len(facts) == NUMBERS + FLAGS
    assert all(0 <= fact < 6 for fact in facts)


def test_a_long_turn_is_measured_by_its_ends():
    found = shape("Why?\n" + "word " * 10_000 + "\n1. one\n2. two:")
    assert (found.chars, found.lines, found.items, found.open_end) == (50_020, 4, 2, True)
    assert found.copyable > 0.9


CHANGES = {
    "user": "x" * 3000 + "ab",
    "system": "s",
    "before": "b",
    "reply": "r",
    "result": "done",
    "turns": 2,
    "tools": ({},),
    "tool_choice": "none",
    "response_format": "json_object",
    "prediction": "p",
    "images": True,
    "declared": "math",
}


@pytest.mark.parametrize("field", Prompt.__struct_fields__)
def test_the_key_of_facts_tells_prompts_apart_whose_facts_differ(field):
    prompt = read_prompt({"prompt": "x" * 1000 + "ab"})
    told, facts = [], []
    for each in (prompt, msgspec.structs.replace(prompt, **{field: CHANGES[field]})):
        window = window_of(each)
        told.append((window, facts_key(each)))
        facts.append(facts_of(each, Read.of(each, window).shape))
    assert facts[0] == facts[1] or told[0] != told[1]
