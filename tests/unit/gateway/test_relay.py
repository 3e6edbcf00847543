"""What passes through a stream, whatever the chunking: stripped, counted, never split inside a character."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.relay import DONE, Relay
from tests.fixtures.servers import METRICS, USAGE, chunk, completion, events

STREAM = (
    events(chunk({"role": "assistant", "content": ""}))
    + events(*(chunk({"content": word}) for word in ("höl", "data: {", '"usage"', "\n\n", "😀")))
    + events(chunk({}, "stop"))
    + events(chunk(None, usage=USAGE, metrics=METRICS))
    + DONE
)


def relay(**options: bool) -> Relay:
    return Relay(**{"keep_usage": False, "keep_metrics": False, **options}, fingerprint="fp_1")


def run(made: Relay, pieces: list[bytes]) -> list[bytes]:
    out = [made.feed(piece, float(number)) for number, piece in enumerate(pieces)]
    return [*out, made.end(float(len(pieces)))]


def payloads(raw: bytes) -> list[Any]:
    return [json.loads(event[6:]) for event in raw.decode().split("\n\n") if event and event != "data: [DONE]"]


def text_of(raw: bytes) -> str:
    return "".join(c["delta"].get("content") or "" for p in payloads(raw) for c in p["choices"])


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, len(STREAM)), max_size=12), st.booleans())
def test_any_chunking_gives_the_same_stream(cuts: list[int], crlf: bool) -> None:
    stream = STREAM.replace(b"\n\n", b"\r\n\r\n") if crlf else STREAM
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    made = relay()
    out = run(made, [stream[a:b] for a, b in itertools.pairwise(edges)])
    for piece in out:
        piece.decode()  # whole characters only
        assert piece == b"" or piece.endswith(b"\n\n")
    raw = b"".join(out)
    assert raw.endswith(DONE)
    assert raw.count(b"[DONE]") == 1
    assert text_of(raw) == 'höldata: {"usage"\n\n😀'
    assert all(p["system_fingerprint"] == "fp_1" for p in payloads(raw))
    assert all("usage" not in p and "metrics" not in p for p in payloads(raw))
    assert made.usage == USAGE
    assert made.final["metrics"] == METRICS
    assert made.finish_reason == "stop"
    assert made.events >= 6


def test_what_was_asked_for_stays() -> None:
    raw = b"".join(run(relay(keep_usage=True, keep_metrics=True), [STREAM]))
    assert payloads(raw)[-1]["usage"] == USAGE
    assert payloads(raw)[-1]["metrics"] == METRICS
    raw = b"".join(run(relay(keep_usage=True), [STREAM]))
    assert payloads(raw)[-1]["usage"] == USAGE
    assert "metrics" not in payloads(raw)[-1]


def test_a_null_usage_on_every_chunk_goes_too() -> None:
    stream = events(chunk({"content": "a"}, usage=None), chunk({"content": "b"}, "stop", usage=None)) + DONE
    assert all("usage" not in p for p in payloads(b"".join(run(relay(), [stream]))))
    assert all("usage" in p for p in payloads(b"".join(run(relay(keep_usage=True), [stream]))))


def test_a_fingerprint_of_the_engine_is_replaced() -> None:
    stream = events(chunk({"content": "a"}, system_fingerprint=None), chunk({}, "stop", system_fingerprint="x")) + DONE
    raw = b"".join(run(relay(), [stream]))
    assert [p["system_fingerprint"] for p in payloads(raw)] == ["fp_1", "fp_1"]
    assert raw.count(b"system_fingerprint") == 2


def test_the_clock_starts_with_the_first_token_not_with_the_role() -> None:
    made = relay()
    made.feed(events(chunk({"role": "assistant", "content": ""})), 1.0)
    assert made.first_at is None
    made.feed(b": ping\n\n", 2.0)
    made.feed(events(chunk({"content": "a"})), 3.0)
    made.feed(events(chunk({"content": "b"}), chunk({"content": "c"})), 5.0)
    assert (made.first_at, made.last_at, made.events) == (3.0, 5.0, 3)
    assert made.itl == [2.0]


@pytest.mark.parametrize(
    "delta", [{"reasoning_content": "hm"}, {"reasoning": "hm"}, {"tool_calls": [{"index": 0}]}, {"refusal": "no"}]
)
def test_any_output_counts_as_a_token(delta: dict[str, Any]) -> None:
    made = relay()
    made.feed(events(chunk(delta)), 1.0)
    assert made.first_at == 1.0


def test_comments_and_foreign_events_pass_untouched() -> None:
    stream = b": keep-alive\n\nevent: note\ndata: 7\n\n" + events(chunk({"content": "a"}, "stop")) + DONE
    raw = b"".join(run(relay(), [stream]))
    assert raw.startswith(b": keep-alive\n\nevent: note\ndata: 7\n\n")


def test_an_error_in_the_stream_is_noted_and_passes() -> None:
    made = relay()
    out = made.feed(events(chunk({"content": "a"}), {"error": {"message": "out of memory", "code": "oom"}}), 1.0)
    assert made.error == {"message": "out of memory", "code": "oom"}
    assert b"out of memory" in out
    assert made.end(2.0) == DONE


def test_a_stream_without_its_end_is_told() -> None:
    made = relay()
    made.feed(events(chunk({"content": "a"})), 1.0)
    with pytest.raises(ValueError, match="mid-answer"):
        made.end(2.0)


def test_a_missing_done_is_added_and_a_last_event_without_its_line_is_sent() -> None:
    made = relay()
    made.feed(events(chunk({"content": "a"})), 1.0)
    made.feed(events(chunk({}, "stop")).rstrip(), 2.0)
    assert made.end(3.0).endswith(b"\n\n" + DONE)


def test_an_unstreamed_answer_is_stripped_and_kept_otherwise() -> None:
    body = json.dumps(completion("hi", metrics=METRICS, extra={"a": 1.5})).encode()
    made = relay()
    answer = json.loads(made.answer(body))
    assert answer == {**completion("hi", extra={"a": 1.5}), "system_fingerprint": "fp_1"}
    assert made.final["metrics"] == METRICS
    assert json.loads(relay(keep_metrics=True).answer(body))["metrics"] == METRICS
    with pytest.raises(ValueError, match=r".+"):
        relay().answer(b"<html>")
    with pytest.raises(ValueError, match=r".+"):
        relay().answer(b"[]")


def test_an_endless_event_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.relay._MAX_EVENT", 100)
    with pytest.raises(ValueError, match="100 bytes"):
        relay().feed(b"data: " + b"x" * 200, 0.0)
