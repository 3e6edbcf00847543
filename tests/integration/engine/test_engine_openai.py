"""The real engine process, spoken to by the real OpenAI client: both endpoints, streamed and whole, every path."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from openai import BadRequestError, NotFoundError, OpenAI, Stream
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from tokenizers.pre_tokenizers import ByteLevel

MODEL = "tiny-target"
TALK: list[Any] = [
    {"role": "system", "content": "You repeat."},
    {"role": "user", "content": "abcabcabcabc"},
    {"role": "assistant", "content": ""},
    {"role": "user", "content": [{"type": "text", "text": "abc"}, {"type": "text", "text": "abc"}]},
]
PATHS = [None, ("ngram", 4), ("suffix", 3), ("draft_model", 2), ("plain", 0)]


@pytest.fixture(scope="module")
def client(engine_url: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{engine_url}/v1", api_key="unused", max_retries=0) as client:
        yield client


def chat(client: OpenAI, path: tuple[str, int] | None = None, **options: Any) -> ChatCompletion:
    extra = dict(options.pop("extra_body", {}))
    if path is not None:
        extra["speculation"] = {"method": path[0], "k": path[1]}
    options = {"model": MODEL, "messages": TALK, "max_tokens": 24, "temperature": 0} | options
    answer = client.chat.completions.create(extra_body=extra, **options)
    assert isinstance(answer, ChatCompletion)
    return answer


def stream(client: OpenAI, path: tuple[str, int] | None = None, **options: Any) -> list[ChatCompletionChunk]:
    extra = {"speculation": {"method": path[0], "k": path[1]}} if path else {}
    options = {"model": MODEL, "messages": TALK, "max_tokens": 24, "temperature": 0} | options
    with client.chat.completions.create(stream=True, extra_body=extra, **options) as chunks:
        assert isinstance(chunks, Stream)
        return list(chunks)


def text_of(chunks: list[ChatCompletionChunk], index: int = 0) -> str:
    parts = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
    return "".join(part.delta.content or "" for part in parts)


def test_the_model_is_listed_with_its_window(client: OpenAI) -> None:
    listed = list(client.models.list())
    assert [model.id for model in listed] == [MODEL]
    assert listed[0].model_dump()["max_model_len"] == 1024
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(NotFoundError):
        client.models.retrieve("other")


@pytest.mark.parametrize("path", PATHS)
def test_every_path_gives_the_plain_answer_streamed_and_whole(client: OpenAI, path: tuple[str, int] | None) -> None:
    plain = chat(client)
    whole = chat(client, path)
    chunks = stream(client, path, stream_options={"include_usage": True})
    content = plain.choices[0].message.content
    assert content
    assert whole.choices[0].message.content == content
    assert text_of(chunks) == content
    assert whole.choices[0].finish_reason == plain.choices[0].finish_reason
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


@pytest.mark.parametrize("path", PATHS)
def test_metrics_say_what_the_path_did(client: OpenAI, path: tuple[str, int] | None) -> None:
    answer = chat(client, path, extra_body={"ignore_eos": True})
    assert answer.usage is not None
    metrics = answer.model_dump()["metrics"]
    spec, cost = metrics["speculative_decoding"], metrics["breakeven"]
    histogram = spec["acceptance_histogram"]
    assert sum(histogram) == spec["num_spec_steps"] == sum(cost["rounds_by_k"].values())
    assert sum(j * rounds for j, rounds in enumerate(histogram)) == spec["num_accepted_draft_tokens"]
    assert sum(cost["emitted"]) == answer.usage.completion_tokens - 1  # the first token comes with the prompt
    assert len(cost["emitted"]) == spec["num_spec_steps"] + cost["undrafted"]
    if path in {None, ("plain", 0)}:
        assert spec["num_spec_steps"] == 0
        assert cost["plain_s"] > 0
    elif path == ("draft_model", 2):
        assert spec["num_spec_steps"] > 0
        assert cost["draft_s"] > 0


def test_usage_and_metrics_come_in_the_last_chunk_only(client: OpenAI) -> None:
    *chunks, last = stream(client, ("draft_model", 2), stream_options={"include_usage": True})
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.total_tokens == last.usage.prompt_tokens + last.usage.completion_tokens
    assert last.model_dump()["metrics"]["speculative_decoding"]["num_spec_steps"] > 0
    assert all(chunk.usage is None and "metrics" not in chunk.model_dump() for chunk in chunks)
    assert [chunk.choices[0].finish_reason for chunk in chunks].count(None) == len(chunks) - 1


def test_a_stream_without_usage_has_none(client: OpenAI) -> None:
    assert all(chunk.usage is None and chunk.choices for chunk in stream(client))


def test_usage_in_every_chunk_when_asked(client: OpenAI) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    counts = [chunk.usage.completion_tokens for chunk in stream(client, stream_options=options) if chunk.usage]
    assert counts == sorted(counts)
    assert counts[-1] == chat(client).usage.completion_tokens  # type: ignore[union-attr]


def test_n_answers_differ_when_sampled_and_repeat_with_the_seed(client: OpenAI) -> None:
    first = chat(client, n=3, temperature=1.0, seed=7)
    again = chat(client, n=3, temperature=1.0, seed=7)
    texts = [choice.message.content for choice in first.choices]
    assert [choice.index for choice in first.choices] == [0, 1, 2]
    assert len(set(texts)) == 3
    assert texts == [choice.message.content for choice in again.choices]
    assert first.model_dump()["metrics"] is None


def test_n_answers_stream_interleaved(client: OpenAI) -> None:
    whole = chat(client, n=2, temperature=1.0, seed=3)
    chunks = stream(client, n=2, temperature=1.0, seed=3)
    assert [text_of(chunks, index) for index in (0, 1)] == [choice.message.content for choice in whole.choices]


def test_logprobs_cover_every_token(client: OpenAI) -> None:
    answer = chat(client, logprobs=True, top_logprobs=2)
    assert answer.usage is not None
    assert answer.choices[0].logprobs is not None
    entries = answer.choices[0].logprobs.content
    assert entries is not None
    assert len(entries) == answer.usage.completion_tokens
    joined = bytes(byte for entry in entries for byte in entry.bytes or [])
    assert joined.decode("utf-8", "replace") == answer.choices[0].message.content
    for entry in entries:
        assert len(entry.top_logprobs) == 2
        assert entry.logprob == pytest.approx(entry.top_logprobs[0].logprob)  # greedy takes the likeliest


def test_streamed_logprobs_equal_the_whole_ones(client: OpenAI) -> None:
    whole = chat(client, ("ngram", 3), logprobs=True).choices[0].logprobs
    chunks = stream(client, ("ngram", 3), logprobs=True)
    streamed = [
        entry
        for chunk in chunks
        for choice in chunk.choices
        for entry in (choice.logprobs.content if choice.logprobs and choice.logprobs.content else [])
    ]
    assert whole is not None
    assert [entry.token for entry in streamed] == [entry.token for entry in whole.content or []]


def test_max_tokens_is_the_length_limit(client: OpenAI) -> None:
    answer = chat(client, max_tokens=3, extra_body={"ignore_eos": True})
    assert (answer.choices[0].finish_reason, answer.usage.completion_tokens) == ("length", 3)  # type: ignore[union-attr]
    newer = client.chat.completions.create(model=MODEL, messages=TALK, temperature=0, max_completion_tokens=3)
    assert newer.choices[0].message.content == answer.choices[0].message.content


def test_stop_string_ends_the_answer_before_it(client: OpenAI) -> None:
    content = chat(client, extra_body={"ignore_eos": True}).choices[0].message.content or ""
    stop = content[len(content) // 2]
    stopped = chat(client, ("ngram", 4), stop=[stop], extra_body={"ignore_eos": True})
    assert stopped.choices[0].message.content == content[: content.index(stop)]
    assert stopped.choices[0].finish_reason == "stop"


def test_predicted_outputs_are_counted(client: OpenAI) -> None:
    plain = chat(client, extra_body={"ignore_eos": True, "logit_bias": {str(3 + 40): 100.0}})
    content = plain.choices[0].message.content or ""
    answer = chat(
        client,
        ("ngram", 4),
        prediction={"type": "content", "content": content},
        extra_body={"ignore_eos": True, "logit_bias": {str(3 + 40): 100.0}},
    )
    assert answer.choices[0].message.content == content
    details = answer.usage.completion_tokens_details if answer.usage else None
    assert details is not None
    assert (details.accepted_prediction_tokens or 0) + (details.rejected_prediction_tokens or 0) > 0


def test_completions_take_text_ids_and_several_prompts(client: OpenAI) -> None:
    one = client.completions.create(model=MODEL, prompt="abc", max_tokens=6, temperature=0)
    many = client.completions.create(model=MODEL, prompt=["abc", "xyz"], n=2, max_tokens=6, temperature=0)
    assert [choice.index for choice in many.choices] == [0, 1, 2, 3]
    assert many.choices[0].text == many.choices[1].text == one.choices[0].text
    assert many.choices[2].text == many.choices[3].text
    ids = [3 + "".join(sorted(ByteLevel.alphabet())).index(letter) for letter in "abc"]
    for prompt in (ids, [ids]):
        by_ids = client.completions.create(model=MODEL, prompt=prompt, max_tokens=6, temperature=0)  # type: ignore[arg-type]
        assert by_ids.choices[0].text == one.choices[0].text


def test_completions_echo_and_stream(client: OpenAI) -> None:
    plain = client.completions.create(model=MODEL, prompt="abc", max_tokens=6, temperature=0)
    echoed = client.completions.create(model=MODEL, prompt="abc", max_tokens=6, temperature=0, echo=True)
    assert echoed.choices[0].text == "abc" + plain.choices[0].text
    with client.completions.create(
        model=MODEL, prompt="abc", max_tokens=6, temperature=0, echo=True, stream=True
    ) as chunks:
        assert "".join(chunk.choices[0].text for chunk in chunks) == echoed.choices[0].text


def test_completions_default_to_sixteen_tokens(client: OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt="abc", temperature=0, extra_body={"ignore_eos": True})
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 16


def test_completion_logprobs_have_offsets(client: OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt="abc", max_tokens=5, temperature=0, logprobs=2)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert logprobs.text_offset is not None
    assert logprobs.top_logprobs is not None
    assert logprobs.text_offset[0] == 0
    assert len(logprobs.tokens) == len(logprobs.text_offset) == len(logprobs.top_logprobs) == 5


def test_fingerprint_names_the_arm(client: OpenAI) -> None:
    plain, ngram = chat(client), chat(client, ("ngram", 4))
    assert plain.system_fingerprint == chat(client).system_fingerprint
    assert plain.system_fingerprint != ngram.system_fingerprint


def test_unicode_survives_the_stream(client: OpenAI) -> None:
    talk = [{"role": "user", "content": "žluťoučký kůň 🦊"}]
    whole = client.chat.completions.create(model=MODEL, messages=talk, max_tokens=64, temperature=1.0, seed=1)  # type: ignore[call-overload]
    chunks = stream(client, messages=talk, max_tokens=64, temperature=1.0, seed=1)
    assert text_of(chunks) == whole.choices[0].message.content


SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "size": {"enum": ["s", "m"]}},
    "required": ["ok", "size"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_json_schema_is_kept_on_every_path(client: OpenAI, path: tuple[str, int] | None, temperature: float) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "thing", "strict": True, "schema": SCHEMA}}
    answer = chat(client, path, response_format=wanted, temperature=temperature, seed=1, max_tokens=64)
    found = json.loads(answer.choices[0].message.content or "")
    assert found.keys() == {"ok", "size"}
    assert isinstance(found["ok"], bool)
    assert found["size"] in {"s", "m"}


def test_json_object_is_an_object(client: OpenAI) -> None:
    bias = {str(3 + "".join(sorted(ByteLevel.alphabet())).index("}")): 10.0}
    answer = chat(client, response_format={"type": "json_object"}, max_tokens=200, logit_bias=bias)
    assert isinstance(json.loads(answer.choices[0].message.content or ""), dict)


def test_a_schema_that_cannot_be_kept_is_refused(client: OpenAI) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "no-such-type"}}}
    with pytest.raises(BadRequestError) as caught:
        chat(client, response_format=wanted)
    assert str(caught.value.param).startswith("response_format")


def test_prefixes_are_reused_within_one_salt_only(client: OpenAI) -> None:
    def cached(salt: str) -> int:
        talk = [{"role": "user", "content": "a prefix that no other test has " * 3}]
        answer = chat(client, messages=talk, max_tokens=2, extra_body={"cache_salt": salt})
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        return answer.usage.prompt_tokens_details.cached_tokens or 0

    assert [cached("one"), cached("two")] == [0, 0]
    assert min(cached("one"), cached("two")) > 80
