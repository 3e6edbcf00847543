"""Token hashing against a slow reference, and what folding makes equal."""

import numpy as np
import pytest

from gateway.classify.artefact import DEFAULT, load_artefact
from gateway.classify.tokens import Tokenizer, build_char_tables


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer(load_artefact(DEFAULT).chars, 2000)


def unigrams(tokenizer, text):
    return tokenizer.hash(text).unigrams.tolist()


def test_shipped_tables_are_those_that_would_be_built_now():
    built, shipped = build_char_tables(), load_artefact(DEFAULT).chars
    assert np.array_equal(built.folded, shipped.folded)
    assert np.array_equal(built.kind, shipped.kind)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Translate", "tRANSLATE"),
        ("übersetze", "UBERSETZE"),
        ("Prelož", "preloz"),
        ("traducción", "TRADUCCION"),
        ("１２３", "789"),
        ("ＡＢＣ", "abc"),
    ],
)
def test_case_accents_widths_and_digits_do_not_matter(tokenizer, one, other):
    assert unigrams(tokenizer, one) == unigrams(tokenizer, other)


def test_a_token_hashes_the_same_wherever_it_stands(tokenizer):
    alone = unigrams(tokenizer, "summarize")
    assert alone[0] in unigrams(tokenizer, "please summarize, now")
    assert unigrams(tokenizer, "a summarize")[1] == alone[0]


def test_words_marks_and_ideographs_are_tokens(tokenizer):
    assert len(unigrams(tokenizer, "don't (stop)!")) == 7
    assert len(unigrams(tokenizer, "请翻译 abc")) == 4
    assert len(unigrams(tokenizer, "कविता लिखो")) == 2


def test_bigrams_tell_order(tokenizer):
    assert tokenizer.hash("alpha beta").bigrams.tolist() != tokenizer.hash("beta alpha").bigrams.tolist()


def test_empty_and_blank_texts_have_no_tokens(tokenizer):
    for text in ("", " \n\t", "\x00"):
        tokens = tokenizer.hash(text)
        assert len(tokens.unigrams) == len(tokens.bigrams) == 0


def test_char_grams_match_across_positions(tokenizer):
    text = "abcd xabcd"
    grams = tokenizer.hash(text, len(text)).grams.tolist()
    assert len(grams) == len(text) - 3
    assert grams[0] == grams[6]
    assert tokenizer.hash(text, 2).grams.tolist() == grams[:2]
    assert tokenizer.hash("abc", 3).grams.size == 0


def test_ascii_and_other_text_are_hashed_alike(tokenizer):
    plain = tokenizer.hash("Say it: twice!")
    mixed = tokenizer.hash("Say it: twice! é")
    assert mixed.unigrams[:-1].tolist() == plain.unigrams.tolist()
    assert mixed.bigrams[:-1].tolist() == plain.bigrams.tolist()


def test_distinct_words_do_not_collide(tokenizer):
    words = [f"{a}{b}{c}" for a in "bcdfgh" for b in "aeiou" for c in "lmnprstvz"]
    assert len({unigrams(tokenizer, word)[0] for word in words}) == len(words)
