"""Tokens and what folding makes equal, the vocabulary, and sums in lanes against numpy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.classify.artefact import DEFAULT, load_artefact
from gateway.classify.lanes import pack, unpack
from gateway.classify.lexicon import cue_vocabulary
from gateway.classify.tokens import Tokenizer, build_folds
from gateway.classify.vocabulary import Vocabulary


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer(load_artefact(DEFAULT).folds)


def tokens(tokenizer, text):
    return tokenizer.split(tokenizer.fold(text))


def test_shipped_table_is_the_one_that_would_be_built_now():
    assert np.array_equal(build_folds(), load_artefact(DEFAULT).folds)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Translate", "tRANSLATE"),
        ("übersetze", "UBERSETZE"),
        ("Prelož", "preloz"),
        ("traducción", "TRADUCCION"),
        ("１２３", "789"),
        ("ＡＢＣ", "abc"),
        ("“so”", '"so"'),
        ("什么？", "什么?"),
    ],
)
def test_case_accents_widths_quotes_and_digits_do_not_matter(tokenizer, one, other):
    assert tokens(tokenizer, one) == tokens(tokenizer, other)


def test_words_marks_and_ideographs_are_tokens(tokenizer):
    assert tokens(tokenizer, "don't (stop)!") == ["don", "'", "t", "(", "stop", ")", "!"]
    assert tokens(tokenizer, "请翻译 abc") == ["请", "翻", "译", "abc"]
    assert tokens(tokenizer, "用python写") == ["用", "python", "写"]
    assert tokens(tokenizer, "कविता लिखो") == ["कविता", "लिखो"]
    assert tokens(tokenizer, "x ≤ 12") == ["x", "≤", "00"]


def test_empty_and_blank_texts_have_no_tokens(tokenizer):
    for text in ("", " \n\t", "\x00", "\ud800", "🙂"):
        assert tokens(tokenizer, text) == []


@settings(max_examples=50, deadline=None)
@given(st.text(alphabet=st.characters(max_codepoint=127)))
def test_ascii_and_other_text_are_read_alike(text):
    tokenizer = Tokenizer(load_artefact(DEFAULT).folds)
    assert tokens(tokenizer, f"{text} я")[:-1] == tokens(tokenizer, text)


def test_cues_of_one_to_three_words_are_numbered_and_the_first_class_keeps_them(tokenizer):
    made = cue_vocabulary(
        {"a": ["Tell me", "why"], "b": ["tell me why", "why"], "c": ["one two three four"]}, tokenizer
    )
    tell, me, why, unknown = made.numbers(["tell", "me", "why", "four"])
    (pair, none) = made.pair_numbers([tell, me, why])
    assert (made.word_cue[why], made.word_cue[tell], unknown, none) == (1, 0, 0, 0)
    assert made.pair_cue[pair] == 1
    assert made.threes == {(pair, why): 2}
    grown = made.grown(["why", "zebra"])
    assert grown.numbers(["tell", "zebra"]) == [tell, len(made.words) + 1]
    assert Vocabulary.of(grown.arrays()) == grown


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.integers(-32768, 32767), min_size=8, max_size=8), min_size=1, max_size=30))
def test_sums_in_lanes_are_those_of_vectors(rows):
    vectors = np.array(rows)
    packed = pack(vectors)
    found = np.array(unpack(sum(packed) * 512, 8))
    expected = vectors.sum(axis=0) * 512
    assert np.all((found == expected) | (found == expected - 1))
    assert found[0] == expected[0]


def test_mistyped_and_inflected_cue_words_count_as_the_right_ones(tokenizer):
    made = cue_vocabulary({"a": ["translate", "poem"]}, tokenizer).grown(["relates"])
    known = made.numbers(["translate", "poem", "relates"])
    assert made.numbers(["translates", "tarnslate", "relates"]) == [known[0], known[0], known[2]]
    assert made.numbers(["tranquil", "peom", "relate", "电"]) == [0, 0, 0, 0]
