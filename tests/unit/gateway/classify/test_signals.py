"""Structural facts of a turn."""

import pytest

from gateway.classify.prompt import read_prompt
from gateway.classify.signals import NUMBERS, numbers_of, structure_of


def shape(text):
    return structure_of(read_prompt({"prompt": text}))


def test_code_and_math_marks():
    code = shape("fix:\n```python\ndef f(x):\n    return x == 1\n```")
    assert code.fences == 2
    assert code.code_marks >= 4
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


def test_numbers_have_the_model_s_width_and_are_small():
    prompt = read_prompt({"prompt": "x" * 1_000_000})
    numbers = numbers_of(prompt, structure_of(prompt))
    assert len(numbers) == NUMBERS
    assert all(0 <= number < 6 for number in numbers)
