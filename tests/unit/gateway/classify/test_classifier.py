"""What decides: declaration, then settling signals, then the text; golden requests of every task."""

import pytest

from gateway.classify import Memory
from gateway.types import DEFAULT_TASKS

TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}]


def chat(text, **fields):
    return {"messages": [{"role": "user", "content": text}], **fields}


def test_a_declared_task_wins_over_everything(classifier):
    body = chat("Write a poem", tools=TOOLS, response_format={"type": "json_object"}, metadata={"task": "math"})
    assert classifier.classify(body).task == "math"
    found = classifier.classify(body, declared=" Code ")
    assert (found.task, found.confidence, found.source) == ("code", 1.0, "declared")


def test_a_response_format_settles(classifier):
    found = classifier.classify(chat("Write a poem", response_format={"type": "json_schema", "json_schema": {}}))
    assert (found.task, found.source) == ("structured", "signal")
    assert found.signals["response_format"] == "json_schema"
    assert classifier.classify(chat("Write a poem", response_format={"type": "text"})).task == "creative"


def test_tools_settle_unless_they_may_not_be_called_or_have_answered(classifier):
    assert classifier.classify(chat("What is 3 + 4?", tools=TOOLS)).task == "structured"
    assert classifier.classify(chat("What is 3 + 4?", tools=TOOLS, tool_choice="none")).source == "text"
    answered = chat("How warm is it in Oslo?", tools=TOOLS)
    answered["messages"] += [
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "tool", "content": '{"temperature": 12}', "tool_call_id": "1"},
    ]
    found = classifier.classify(answered)
    assert found.source == "text"
    assert found.signals["tool_result"] is True


def test_below_the_threshold_the_fallback_holds(classifier):
    body = chat("hm")
    sure = classifier.classify(body)
    unsure = classifier.classify(body, threshold=0.9999, fallback="code")
    assert (unsure.task, unsure.source) == ("code", "fallback")
    assert unsure.signals["text_task"] == sure.task
    assert unsure.confidence == sure.confidence < 0.9999


def test_nothing_to_read_is_the_fallback(classifier):
    for body in ({}, {"messages": []}, {"prompt": ""}, chat("  \n"), chat(None)):
        found = classifier.classify(body)
        assert (found.task, found.source) == ("chat", "fallback")


def test_the_last_turn_decides(classifier):
    body = {
        "messages": [
            {"role": "user", "content": "Write a short poem about a harbour at night."},
            {"role": "assistant", "content": "The lamps lean low upon the water..."},
            {"role": "user", "content": "Now write a Python function that counts the vowels in it."},
        ]
    }
    assert classifier.classify(body).task == "code"


def test_confidence_is_a_probability_and_micros_are_measured(classifier):
    found = classifier.classify(chat("Solve x^2 - 5x + 6 = 0"))
    assert 1 / len(DEFAULT_TASKS) <= found.confidence <= 1
    assert found.micros > 0
    assert found.signals["script"] == "latin"


GOLDEN = [
    ("code", "Write a Rust function that merges two sorted vectors."),
    ("code", "Schreibe ein Bash-Skript, das alle leeren Ordner löscht."),
    ("code", "def last_digit(n: int) -> int:\n    '''Return the last decimal digit of n.'''\n"),
    ("math", "A farmer sells 12 crates of 24 apples at 30 cents each. How much money does he make?"),
    ("math", "Resuelve la ecuación 4x - 9 = 2x + 5."),
    ("math", "证明：两个奇数的和是偶数。"),
    (
        "summarization",
        "Summarize the following in one sentence: " + "The council met on Monday and argued about the bridge. " * 8,
    ),
    ("summarization", "Fasse diesen Text kurz zusammen:\n\n" + "Der Rat stritt am Montag über die neue Brücke. " * 8),
    (
        "grounded_qa",
        "Context: The bakery opens at six and closes at noon on Sundays.\n\nQuestion: When does it close?\nAnswer:",
    ),
    ("grounded_qa", "Texte : Le pont date de 1904 et mesure 80 mètres.\nQuestion : De quand date le pont ?"),
    ("translation", "Translate into French: Where can I leave my luggage?"),
    ("translation", "Prelož do angličtiny: Dnes večer prídem neskôr."),
    ("translation", "把下面的句子翻译成英文：我们下周见。"),
    ("creative", "Write a bedtime story about a snail who wants to win a race."),
    ("creative", "Schrijf een gedicht over de herfst."),
    ("creative", "एक कविता लिखो जिसमें समुद्र और चाँद हों।"),
    ("structured", 'Extract name and age as JSON: {"name": ..., "age": ...}. Text: Olga turned 41 in May.'),
    ("structured", "Classify the sentiment as positive, negative or neutral. Answer with one word: The soup was cold."),
    ("chat", "Why do cats purr?"),
    ("chat", "¿Qué puedo ver en Lisboa en dos días?"),
    ("chat", "hello, how are you?"),
]


@pytest.mark.parametrize(("task", "text"), GOLDEN)
def test_golden_requests(classifier, task, text):
    assert classifier.classify(chat(text)).task == task


HARD = [
    ("creative", "Write a short story about a programmer who falls in love with her compiler."),
    ("translation", 'Translate the values of this JSON into German, keep the keys: {"save": "Save", "quit": "Quit"}'),
    ("chat", "What makes a good summary of a novel, and how long should it be?"),
    ("code", "Write a Python script that translates subtitle files with an API."),
    ("code", "n ropes are cut into k equal pieces. How long can they be?\n\nInput\nn and k\n\nOutput\nthe length"),
    ("chat", "how many teeth does a dog have"),
    ("creative", "birthday card for a beekeeper"),
]


@pytest.mark.parametrize(("task", "text"), HARD)
def test_words_of_one_task_in_a_request_of_another(classifier, task, text):
    assert classifier.classify(chat(text)).task == task


def test_what_is_read_together_is_told_as_if_it_were_read_alone(classifier):
    """More than are read at once, with and without other turns, some settled, some empty, one of the longest."""
    bodies = [chat(text) for _, text in GOLDEN + HARD]
    bodies += [{}, chat(""), chat("x" * 5000), chat("🦊" * 40), chat("hm", tools=TOOLS)]
    for at, body in enumerate(bodies[:9]):
        text = body["messages"][0]["content"]
        body["messages"] = [{"role": "system", "content": text[at:] * at}, *body["messages"]]
        body["messages"] += [{"role": "assistant", "content": text[:at]}, {"role": "user", "content": text[::-1]}]
    alone = [classifier.classify(body, threshold=0.5, fallback="code") for body in bodies]
    together = classifier.classify_all([(body, None) for body in bodies], threshold=0.5, fallback="code")
    for one, other in zip(alone, together, strict=True):
        assert (one.task, one.confidence, one.source) == (other.task, other.confidence, other.source)
        assert one.signals == other.signals


def told(found):
    return found.task, found.confidence, found.source, found.signals


IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}
TURNS = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]
LIKE_EACH_OTHER = [
    {"messages": [{"role": "user", "content": "Rename x to y in this"}]},
    {"messages": [{"role": "user", "content": "Rename x to y in this"}, {"role": "tool", "content": "done"}]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "Rename x to y in this"}, IMAGE]}]},
    {"messages": [{"role": "system", "content": "Rename"}, {"role": "user", "content": "Rename x to y in this"}]},
    {"messages": [*TURNS, {"role": "user", "content": "Rename x to y in this"}]},
    {"messages": [*TURNS[:1], {"role": "user", "content": "Rename x to y in this"}]},
    {"prompt": "Rename x to y in this", "prediction": {"type": "content", "content": "y"}},
    {"prompt": "Rename x to y in this", "tools": TOOLS, "tool_choice": "none"},
    {"prompt": "Rename x to y in this", "tools": TOOLS},
    {"prompt": "Rename x to y in this", "metadata": {"task": "math"}},
    {"prompt": "a" * 256 + " " + "b" * 160},
    {"prompt": "a" * 256 + " " * 9000 + "b" * 160},
]


def test_what_is_remembered_is_what_would_be_told_anew(classifier):
    """Requests that differ in one thing that is read are never taken for each other, in whatever order they come."""
    memory = Memory()
    for _ in range(2):
        for body in LIKE_EACH_OTHER + LIKE_EACH_OTHER[::-1]:
            (found,) = classifier.classify_all([(body, None)], memory=memory)
            assert told(found) == told(classifier.classify(body))


def test_doubts_of_another_policy_hold_for_what_is_remembered(classifier):
    memory = Memory()
    asked = [(chat("hm"), None)]
    (sure,) = classifier.classify_all(asked, memory=memory)
    (unsure,) = classifier.classify_all(asked, threshold=0.9999, fallback="code", memory=memory)
    assert (sure.source, unsure.task, unsure.source) == ("text", "code", "fallback")


def test_a_memory_is_bounded_and_keeps_what_was_asked_for_last():
    memory = Memory(2)
    known = {name: object() for name in "abc"}
    memory.keep("a", known["a"])
    memory.keep("b", known["b"])
    assert memory.get("a") is known["a"]
    memory.keep("c", known["c"])
    assert memory.get("b") is None
    assert memory.get("a") is known["a"]
    assert memory.get("c") is known["c"]
