"""Answers of two paths: equal, parted within rounding, or different; and what is known of the place."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.lossless.compare import TIE_FLOAT32, Answer, answer_of, explained, parting


def chat(text: str, finish: str = "stop", **message: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "message": {"content": text, **message}, "finish_reason": finish}]}


def with_gaps(text: str, *tokens: tuple[str, float | None]) -> Answer:
    items = []
    for token, gap in tokens:
        tops = [{"token": token, "logprob": -0.1}]
        tops += [] if gap is None else [{"token": "x", "logprob": -0.1 - gap}]
        items.append({"token": token, "bytes": list(token.encode()), "logprob": -0.1, "top_logprobs": tops})
    payload = chat(text)
    payload["choices"][0]["logprobs"] = {"content": items}
    return answer_of(payload)


def test_equal_answers_do_not_part():
    call = [{"id": "call_1", "function": {"name": "f", "arguments": '{"a": 1}'}}]
    other = [{"id": "call_2", "function": {"name": "f", "arguments": '{"a": 1}'}}]
    assert parting(answer_of(chat("a", tool_calls=call)), answer_of(chat("a", tool_calls=other))) is None
    completed = answer_of({"choices": [{"text": "ab", "finish_reason": "length"}]})
    assert parting(completed, Answer({"content": "ab"})) is None


@pytest.mark.parametrize(
    ("plain", "other", "field", "position"),
    [
        (chat("naïve one"), chat("naïve two"), "content", 6),
        (chat("short"), chat("short and more"), "content", 5),
        (chat("a", reasoning_content="because"), chat("a", reasoning_content="before"), "reasoning_content", 2),
        (chat("a", finish="stop"), chat("a", finish="length"), "finish_reason", None),
        (
            chat("", tool_calls=[{"function": {"name": "f", "arguments": "{1}"}}]),
            chat("", tool_calls=[{"function": {"name": "f", "arguments": "{2}"}}]),
            "tool_calls.0.arguments",
            1,
        ),
        (chat(""), chat("", tool_calls=[{"function": {"name": "f", "arguments": ""}}]), "tool_calls.0.name", 0),
    ],
)
def test_the_place_is_named(plain: dict, other: dict, field: str, position: int | None):
    verdict = parting(answer_of(plain), answer_of(other))
    assert verdict is not None
    assert (verdict.field, verdict.position, verdict.outcome) == (field, position, "unexplained")


@pytest.mark.parametrize(
    ("gap", "tie", "outcome"),
    [(0.02, 0.5, "near_tie"), (0.02, TIE_FLOAT32, "different"), (3.0, 0.5, "different"), (None, 0.5, "unexplained")],
)
def test_the_gap_at_the_place_decides(gap: float | None, tie: float, outcome: str):
    """The parting character lies in the third token; multi-byte characters before it are counted in bytes."""
    text = "naïve one"
    plain = answer_of(chat(text))
    verdict = parting(plain, answer_of(chat("naïve two")))
    assert verdict is not None
    probed = with_gaps(text, ("na", 9.0), ("ïve ", 9.0), ("one", gap))
    found = explained(verdict, plain, probed, tie)
    assert (found.outcome, found.token) == (outcome, 2)
    assert found.gap == (pytest.approx(gap) if gap is not None else None)


def test_nothing_is_explained_by_another_answer():
    """A server that does not answer the same twice on its plain arm says nothing about speculation."""
    plain, other = answer_of(chat("one")), answer_of(chat("two"))
    verdict = parting(plain, other)
    assert verdict is not None
    assert explained(verdict, plain, with_gaps("six", ("six", 0.01))) == verdict
    assert explained(verdict, plain, with_gaps("one", ("four", 0.01))) == verdict


def test_logprobs_of_completions():
    logprobs = {"tokens": ["a", "b"], "top_logprobs": [{"a": -0.5, "c": -1.0}, {"b": -0.1}]}
    payload = {"choices": [{"text": "ab", "finish_reason": "stop", "logprobs": logprobs}]}
    assert answer_of(payload).tokens == [(b"a", 0.5), (b"b", None)]
