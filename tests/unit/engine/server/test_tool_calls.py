"""Tool calls in a model's text, however it is cut into pieces."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.messages import Speculation
from engine.models import LoadedModel
from engine.sequence import GenerateRequest, SamplingParams, StepOutput
from engine.server.jobs import Job
from engine.server.render import Renderer
from engine.server.tool_calls import ToolCallParser
from engine.tokenizer import ChatTokenizer

CALL = '<tool_call>\n{"name": "look_up", "arguments": {"city": "Zürich", "days": 3}}\n</tool_call>'
TEXTS = [
    f"Let me see.\n{CALL}",
    f"{CALL}\n{CALL}\n",
    "No call <tool_ca at all < tool_call>",
    f"a{CALL}b",
    f"{CALL}\n\n{CALL}\n x\n y <tool",
    '<tool_call>{"name": 5}</tool_call>',
    "<tool_call>not json</tool_call>",
    '<tool_call>\n{"name": "cut',
    "",
]


def parse(pieces: list[str]) -> tuple[str, list[tuple[str, str]]]:
    parser = ToolCallParser()
    content, found = "", []
    for piece in pieces:
        text, calls = parser.push(piece)
        content += text
        found += [(call.function.name, call.function.arguments) for call in calls]
    return content + parser.flush(), found


def test_calls_leave_the_content() -> None:
    content, calls = parse([TEXTS[0]])
    assert content == "Let me see.\n"
    assert [(name, json.loads(arguments)) for name, arguments in calls] == [("look_up", {"city": "Zürich", "days": 3})]
    assert len(parse([TEXTS[1]])[1]) == 2
    assert parse([TEXTS[3]])[0] == "ab"


@pytest.mark.parametrize("text", [TEXTS[2], TEXTS[5], TEXTS[6], TEXTS[7]])
def test_what_is_no_call_stays_as_written(text: str) -> None:
    assert parse([text]) == (text, [])


@pytest.mark.parametrize("text", TEXTS)
def test_single_characters_give_the_same(text: str) -> None:
    assert parse(list(text)) == parse([text])


@given(st.sampled_from(TEXTS), st.lists(st.integers(0, 120), max_size=12))
def test_cutting_changes_nothing(text: str, cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[start:end] for start, end in itertools.pairwise(edges)]
    assert parse(pieces) == parse([text])


@pytest.fixture
def job() -> Job:
    request = GenerateRequest("r-0", [1], SamplingParams(), Speculation("plain", 0))
    return Job(
        id="chatcmpl-1",
        kind="chat",
        created=0,
        requests=[request],
        prompt_tokens=1,
        speculation=request.speculation,
        stream=True,
        include_usage=False,
        continuous_usage=False,
        tool_calls=True,
    )


def outputs(text: str) -> list[StepOutput]:
    pieces = [StepOutput("r-0", [5], char) for char in text]
    return [*pieces[:-1], replace(pieces[-1], finish_reason="stop")]


def test_streamed_and_whole_answers_agree(job: Job, tiny_target: LoadedModel) -> None:
    tokenizer = ChatTokenizer(tiny_target)
    whole = Renderer(job, tokenizer, model="m", fingerprint="f")
    streamed = Renderer(job, tokenizer, model="m", fingerprint="f")
    parts = []
    for output in outputs(TEXTS[0]):
        whole.take(0, output)
        chunk = streamed.chunk(0, output)
        assert chunk is not None
        parts.append(chunk.choices[0])
    choice = whole.response().choices[0]
    assert choice.finish_reason == parts[-1].finish_reason == "tool_calls"
    assert choice.message.content == "".join(part.delta.content or "" for part in parts) == "Let me see.\n"
    calls = [call for part in parts for call in part.delta.tool_calls or []]
    assert [call.index for call in calls] == [0]
    assert [call.function for call in calls] == [call.function for call in choice.message.tool_calls]


def test_without_tools_nothing_is_parsed(job: Job, tiny_target: LoadedModel) -> None:
    renderer = Renderer(replace(job, tool_calls=False), ChatTokenizer(tiny_target), model="m", fingerprint="f")
    for output in outputs(CALL):
        renderer.take(0, output)
    choice = renderer.response().choices[0]
    assert (choice.message.content, choice.finish_reason) == (CALL, "stop")
