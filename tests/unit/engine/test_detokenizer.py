"""Text as it comes: whole characters only, nothing of a stop string, the same whatever the chunks."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.detokenizer import Delivery, Detokenizer, OutputStream
from engine.sequence import SamplingParams, TokenLogprob
from tests.fixtures.core import EOS, tokenizer_of

EMOJI = "naïve 🙂 – 你好"


def ids(text: str) -> list[int]:
    encoded: list[int] = tokenizer_of().encode(text, add_special_tokens=False)
    return encoded


def stream(**params: Any) -> OutputStream:
    return OutputStream(SamplingParams(**({"max_tokens": 1000} | params)), tokenizer_of(), frozenset({EOS}))


def feed(out: OutputStream, tokens: list[int], sizes: list[int]) -> list[Delivery]:
    """Push in runs of the given sizes until the stream ends."""
    deliveries = []
    at = 0
    for size in [*sizes, *[1] * len(tokens)]:
        run = tokens[at : at + size]
        if not run:
            break
        at += size
        deliveries.append(out.push(run, [TokenLogprob(token, -1.0, []) for token in run]))
        if deliveries[-1].finish_reason:
            break
    return deliveries


def test_characters_are_never_split() -> None:
    detokenizer = Detokenizer(tokenizer_of())
    pieces = [detokenizer.push(token) for token in ids(EMOJI)]
    assert "".join(pieces) == EMOJI
    assert not any("\ufffd" in piece for piece in pieces)


def test_an_incomplete_character_comes_out_at_the_end() -> None:
    out = stream(max_tokens=6)
    deliveries = feed(out, ids("abc🙂")[:6], [1] * 6)
    assert "".join(one.text for one in deliveries) == "abc\ufffd"
    assert deliveries[-1].finish_reason == "length"


def test_special_tokens_have_no_text_and_eos_is_not_delivered() -> None:
    delivery = stream().push([*ids("hi"), 1, *ids("!"), EOS, *ids("never")])
    assert (delivery.text, delivery.finish_reason, delivery.consumed) == ("hi!", "stop", 5)
    assert EOS not in delivery.token_ids


def test_ignore_eos_goes_on() -> None:
    delivery = stream(ignore_eos=True).push([*ids("a"), EOS, *ids("b")])
    assert (delivery.text, delivery.finish_reason) == ("ab", None)


def test_a_stop_string_inside_a_run_cuts_text_tokens_and_logprobs() -> None:
    tokens = ids("one STOP two")
    delivery = stream(stop=("STOP",), logprobs=0).push(tokens, [TokenLogprob(token, 0.0, []) for token in tokens])
    assert (delivery.text, delivery.finish_reason) == ("one ", "stop")
    assert delivery.token_ids == [one.token_id for one in delivery.logprobs] == ids("one ")
    assert delivery.consumed == len(ids("one STOP"))


def test_the_first_of_several_stop_strings_wins() -> None:
    assert stream(stop=("zz", "b c", "c")).push(ids("a b c zz")).text == "a "


def test_stop_beats_the_cap_and_the_cap_beats_what_follows() -> None:
    both = stream(stop=("cd",), max_tokens=4).push(ids("abcd"))
    assert (both.text, both.finish_reason) == ("ab", "stop")
    capped = stream(stop=("cd",), max_tokens=3).push(ids("abcd"))
    assert (capped.text, capped.finish_reason, capped.consumed) == ("abc", "length", 3)
    eos = stream(max_tokens=2).push([*ids("a"), EOS])
    assert (eos.text, eos.finish_reason) == ("a", "stop")


def test_what_may_become_a_stop_string_is_held_back() -> None:
    out = stream(stop=("<end>",))
    assert out.push(ids("x<en")).text == "x"
    assert out.push(ids("d")).text == ""
    resumed = out.push(ids("!"))
    assert resumed.text == "<end!"
    assert resumed.token_ids == ids("<end!")


def test_counts() -> None:
    out = stream(stop=("ef",))
    out.push(ids("abc"))
    out.push(ids("def"))
    assert (out.generated, out.delivered) == (6, 4)


TEXTS = st.text(alphabet=st.sampled_from("ab é🙂<>x"), min_size=1, max_size=40)


@settings(max_examples=150, deadline=None)
@given(
    text=TEXTS,
    stops=st.lists(st.text(alphabet="ab<>é", min_size=1, max_size=3), max_size=3),
    sizes=st.lists(st.integers(1, 7), max_size=40),
    cap=st.integers(1, 60),
)
def test_chunking_changes_nothing(text: str, stops: list[str], sizes: list[int], cap: int) -> None:
    tokens = [*ids(text), EOS]
    one_by_one = feed(stream(stop=tuple(stops), max_tokens=cap), tokens, [1] * len(tokens))
    chunked = feed(stream(stop=tuple(stops), max_tokens=cap), tokens, sizes)
    for field in ("text", "token_ids", "logprobs"):
        joined = [sum((getattr(one, field) for one in run), start=type(getattr(run[0], field))()) if field != "text"
                  else "".join(one.text for one in run) for run in (one_by_one, chunked)]  # fmt: skip
        assert joined[0] == joined[1]
    assert one_by_one[-1].finish_reason == chunked[-1].finish_reason
    assert "".join(one.text for one in chunked) == ended_at_stop(tokens[: min(cap, len(tokens) - 1)], stops)


def ended_at_stop(tokens: list[int], stops: list[str]) -> str:
    """The text before the stop string that is complete first: a longer one around it is never waited for."""
    text = ""
    for count in range(1, len(tokens) + 1):
        text = tokenizer_of().decode(tokens[:count])
        places = [text.find(stop) for stop in stops if stop in text]
        if places:
            return text[: min(places)]
    return text


def test_the_stop_string_that_is_complete_first_ends_the_output() -> None:
    for sizes in ([], [1, 1, 1], [2, 1]):
        pieces = feed(stream(stop=("<", "><<"), max_tokens=3), [*ids("><<"), EOS], sizes)
        assert "".join(one.text for one in pieces) == ">"


@pytest.mark.parametrize("piece", ["", "a", EMOJI])
def test_joined_pieces_equal_the_whole_decoding(piece: str) -> None:
    detokenizer = Detokenizer(tokenizer_of())
    tokens = ids(piece)
    assert "".join([*map(detokenizer.push, tokens), detokenizer.flush()]) == tokenizer_of().decode(tokens)
