"""Loops are told from text that merely repeats itself."""

from __future__ import annotations

import pytest

from gateway.relay import Relay
from gateway.repetition import is_loop, loops
from gateway.types import Spec
from tests.fixtures.servers import chunk, completion, events

LINE = "and then the cat sat on the mat, "


@pytest.mark.parametrize("text", ["A good story. " + LINE * 8 + LINE[:11], "ha" * 200, "x, y\n" * 60, "word " * 50])
def test_loops(text: str) -> None:
    assert loops(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Once upon a time there was a cat. " * 2,
        LINE * 3 + "but the dog did not, and so the story ends in quite another way than it began, with a song.",
        "".join(f'{{"id": {i}, "name": "item {i}"}}, ' for i in range(40)),
        "\n" * 300,
        "| a | b |\n" * 3 + "-" * 40,
    ],
)
def test_no_loops(text: str) -> None:
    assert not loops(text)


def relay(*texts: str, stream: bool = True) -> Relay:
    made = Relay(keep_usage=False, keep_metrics=False, fingerprint="f")
    if stream:
        for number, text in enumerate(texts):
            made.feed(events(chunk({"content": text})), float(number))
    else:
        import json

        made.answer(json.dumps(completion("".join(texts))).encode())
    return made


@pytest.mark.parametrize("stream", [True, False])
def test_only_long_answers_with_suspicious_acceptance_are_looked_at(stream: bool) -> None:
    looping = relay(*([LINE] * 20), stream=stream)
    fast = Spec(rounds=20, drafted=80, accepted=78, histogram=[])
    slow = Spec(rounds=40, drafted=80, accepted=30, histogram=[])
    assert is_loop(looping, fast, 200)
    assert is_loop(looping, None, 200)
    assert not is_loop(looping, slow, 200)
    assert not is_loop(looping, fast, 20)
    assert not is_loop(relay("All is well.", stream=stream), fast, 200)
