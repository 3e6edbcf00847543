"""Which requests' text is kept, and what is gathered of an answer."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from gateway.fingerprint import draw_of
from gateway.policy.schema import Rule, Store
from gateway.tap import LIMIT, Kept, Tap, wanted
from gateway.texts import stored
from gateway.types import GenerateRequest, Identity
from tests.fixtures.records import make_record

SECRET = b"s" * 32
NOBODY = Identity("anonymous", "anonymous", "app", False)


def request(name: str, **body: Any) -> GenerateRequest:
    return GenerateRequest(
        request_id="sent twice", record_id=name, endpoint="chat", body=body, model="m", stream=False,
        include_usage=False, identity=NOBODY, arrived=0.0, arrived_at=0.0, temperature=0.0, max_tokens=None,
    )  # fmt: skip


def drawn(share: float, secret: bytes = SECRET) -> set[int]:
    rule = Rule("r", store=Store(share))
    return {n for n in range(4000) if wanted(rule, request(f"r{n}"), secret)}


def test_by_default_nothing_is_kept():
    assert drawn(Rule("r").store.prompts) == set()


def test_the_share_is_kept_grows_monotonically_and_depends_on_the_secret():
    small, large = drawn(0.05), drawn(0.2)
    assert 130 < len(small) < 270  # 200 expected; four standard deviations are 55
    assert 700 < len(large) < 900
    assert small < large
    assert len(drawn(1.0)) == 4000
    assert drawn(0.05) == small
    assert drawn(0.05, b"other" * 6) != small


def test_the_draw_says_nothing_about_probes():
    kept = drawn(0.5)
    probed = {n for n in range(4000) if draw_of(f"r{n}", SECRET) < 0.5}
    assert 850 < len(kept & probed) < 1150  # a quarter of 4000 where they are independent


def test_a_client_that_says_store_false_is_left_alone():
    rule = Rule("r", store=Store(1.0))
    assert wanted(rule, request("r1", store=True), SECRET)
    assert wanted(rule, request("r1", store=None), SECRET)
    assert not wanted(rule, request("r1", store=False), SECRET)


def sse(*payloads: dict[str, Any]) -> list[bytes]:
    return [b"data: " + json.dumps(each, ensure_ascii=False).encode() + b"\n\n" for each in payloads]


def delta(index: int = 0, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": fields}]}


def gathered(*blocks: bytes) -> list[dict[str, Any]]:
    tap = Tap()
    for block in blocks:
        tap.feed(block)
    return tap.choices()


def test_a_stream_is_put_together_choice_by_choice():
    blocks = sse(
        delta(role="assistant", content=""), delta(content="Grü"), delta(1, content="B"), delta(content="ße\n\n"),
        delta(reasoning_content="hm"), {"choices": [], "usage": {}}, delta(1, content="b"),
    )  # fmt: skip
    expected = [{"content": "Grüße\n\n", "reasoning_content": "hm"}, {"content": "Bb"}]
    assert gathered(*blocks, b": ping\n\n", b"data: [DONE]\n\n") == expected
    assert gathered(b"".join(blocks)) == expected


def test_completions_and_whole_answers():
    assert gathered(*sse({"choices": [{"index": 0, "text": "a"}]}, {"choices": [{"index": 0, "text": "b"}]})) == [
        {"content": "ab"}
    ]
    tap = Tap()
    tap.take({"choices": [{"index": 0, "message": {"role": "assistant", "content": "whole"}}]})
    assert tap.choices() == [{"content": "whole"}]


def test_tool_calls_are_put_together():
    first = [{"index": 0, "id": "c1", "function": {"name": "look", "arguments": ""}}]
    more = [{"index": 0, "function": {"arguments": '{"at"'}}, {"index": 1, "function": {"name": "up", "arguments": ""}}]
    last = [{"index": 0, "function": {"arguments": ": 1}"}}]
    blocks = sse(delta(tool_calls=first), delta(tool_calls=more), delta(tool_calls=last))
    calls = [{"name": "look", "arguments": '{"at": 1}'}, {"name": "up", "arguments": ""}]
    assert gathered(*blocks) == [{"tool_calls": calls}]


@pytest.mark.parametrize(
    "payload",
    [[], {"choices": None}, {"choices": [None, 3]}, {"choices": [{"index": "x", "delta": {"content": 5}}]},
     {"choices": [{"delta": {"tool_calls": [None, {"function": "f"}, {"index": None}]}}]}],
)  # fmt: skip
def test_odd_answers_gather_nothing(payload):
    assert [choice for choice in gathered(b"data: " + json.dumps(payload).encode() + b"\n\n") if choice] == []


def test_a_long_answer_is_cut_and_takes_bounded_memory():
    tap = Tap()
    for block in sse(delta(content="x" * 1000)) * 2000:
        tap.feed(block)
        assert tap.size < LIMIT + 80_000
    (choice,) = tap.choices()
    assert len(choice["content"]) == LIMIT
    assert tap.truncated


def kept(body: dict[str, Any], tap: Tap | None = None, **changes: Any) -> Kept:
    return Kept(body, 1, make_record("r1", **changes), 3600.0, tap)


def test_a_row_says_what_was_asked_and_answered_and_when_it_expires():
    tap = Tap()
    tap.take({"choices": [{"index": 0, "text": "Hallo"}]})
    row = stored(kept({"prompt": "Grüß", "user": "u"}, tap, endpoint="completions", at=1000.0, end_user="h"))
    assert (row.prompt, row.completion, row.truncated) == ('"Grüß"', '[{"content":"Hallo"}]', False)
    assert (row.request_id, row.at.timestamp(), row.expires_at.timestamp()) == ("r1", 1000.0, 4600.0)
    assert (row.rule, row.policy, row.end_user, row.status) == ("default", "abc", "h", 200)


def test_images_and_sounds_are_left_out_and_long_prompts_cut():
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 5000}}
    sound = {"type": "input_audio", "input_audio": {"data": "B" * 5000, "format": "wav"}}
    link = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
    row = stored(kept({"messages": [{"role": "user", "content": [image, sound, link]}]}))
    parts = json.loads(row.prompt)[0]["content"]
    assert [parts[0]["image_url"]["url"], parts[1]["input_audio"]["data"]] == [
        "(5022 characters left out)", "(5000 characters left out)",
    ]  # fmt: skip
    assert parts[2] == link
    assert row.completion == "[]"
    long = stored(kept({"messages": [{"role": "user", "content": "y" * 2 * LIMIT}]}))
    assert long.truncated
    assert len(msgspec.json.decode(long.prompt)) == LIMIT


def test_a_retention_beyond_the_calendar_ends_with_it():
    record = make_record("r1")
    row = stored(Kept({"messages": []}, 1, record, 1e15, None))
    assert row.expires_at.year == 9999
