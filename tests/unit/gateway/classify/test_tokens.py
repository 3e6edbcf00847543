"""Tokens and what folding makes equal, and the vocabulary."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.classify.artefact import DEFAULT, load_artefact
from gateway.classify.lexicon import cue_entries
from gateway.classify.tokens import Tokenizer, build_folds
from gateway.classify.vocabulary import FULL, build_vocabulary
from gateway.classify.window import EDGE, codes_of
from gateway.errors import ArtefactError


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer(load_artefact(DEFAULT).folds)


def hashes(tokenizer, text):
    return tokenizer.tokens(codes_of(f" {text} {EDGE}"))[1]


def words(tokenizer, text):
    return hashes(tokenizer, text)[:, 0].tolist()


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
    assert words(tokenizer, one) == words(tokenizer, other)


@pytest.mark.parametrize(
    ("text", "split"),
    [
        ("don't (stop)!", "don ' t ( stop ) !"),
        ("请翻译 abc", "请 翻 译 abc"),
        ("用python写", "用 python 写"),
        ("요약해 줘", "요 약 해 줘"),
        ("용융연", "용 융 연"),
        ("कविता   लिखो\n", "कविता लिखो"),
        ("x ≤ 12", "x ≤ 00"),
        ("one 🙂two", "one two"),
    ],
)
def test_words_marks_and_ideographs_are_tokens(tokenizer, text, split):
    expected = [words(tokenizer, part) for part in split.split(" ")]
    assert all(len(part) == 1 for part in expected)
    assert words(tokenizer, text) == [part[0] for part in expected]
    assert len(set(words(tokenizer, text))) == len(expected)


def test_a_word_is_the_same_wherever_it_stands_and_letters_in_another_order_are_another(tokenizer):
    assert words(tokenizer, "stop the stop") == [*words(tokenizer, "stop the"), *words(tokenizer, "stop")]
    assert len({words(tokenizer, word)[0] for word in ("stop", "spot", "pots", "tops", "post", "sto", "stopp")}) == 7


def test_pairs_tell_order_and_the_end(tokenizer):
    (one, last), (other, _) = (hashes(tokenizer, text)[:, 1].tolist() for text in ("red wine", "wine red"))
    assert one != other
    assert hashes(tokenizer, "so red wine")[1:, 1].tolist() == [one, last]


def test_empty_and_blank_texts_have_no_tokens(tokenizer):
    for text in ("", " \n\t", "\x00", "\ud800", "🙂"):
        assert words(tokenizer, text) == []


def test_cues_of_one_and_two_words_are_known_and_the_first_class_keeps_them(tokenizer):
    found = cue_entries({"a": ["Tell me", "why"], "b": ["tell me", "why", "me"]}, tokenizer)
    assert found == {
        int(hashes(tokenizer, "tell me")[0, 1]): 1,
        words(tokenizer, "why")[0]: 1,
        words(tokenizer, "me")[0]: 2,
    }


def test_a_longer_cue_is_refused(tokenizer):
    with pytest.raises(ArtefactError, match="lexicon: b: 'one two three': expected one or two tokens, found 3"):
        cue_entries({"a": ["one two"], "b": ["one two three"]}, tokenizer)


@settings(max_examples=30, deadline=None)
@given(st.sets(st.integers(-(2**63), 2**63 - 1).filter(bool), max_size=400))
def test_each_entry_has_a_place_of_its_own_and_nothing_else_is_known(entries):
    entries = sorted(entries)
    vocabulary = build_vocabulary(entries[::2])
    places, known = vocabulary.find(np.array(entries, dtype=np.int64))
    assert known.tolist() == [place % 2 == 0 for place in range(len(entries))]
    taken = places[::2] % len(vocabulary.keys)
    assert len(set(taken.tolist())) == len(taken)


def test_too_many_entries_are_refused():
    with pytest.raises(ValueError, match=f"at most {int(FULL * (1 << 16))} expected"):
        build_vocabulary(range(1, 50_000))
