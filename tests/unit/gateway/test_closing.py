"""The record of one request: its clock, its counts, and what stays null."""

from __future__ import annotations

import time
from typing import Any

import pytest

from gateway.closing import make_record
from gateway.relay import Relay
from gateway.types import Arm, Classification, Decision, GenerateRequest, Identity, RequestRecord, Spec
from tests.fixtures.servers import USAGE, chunk, events


def request(**fields: Any) -> GenerateRequest:
    body = {"user": "u-7", **fields}
    return GenerateRequest("r", "chat", body, "m", True, False, Identity("k", "n", "app", False),
                           time.perf_counter() - 10.0, 1000.0, 0.5, None, record_id="r~1")  # fmt: skip


def close(relay: Relay | None, spec: Spec | None = None, asked: GenerateRequest | None = None) -> RequestRecord:
    return make_record(
        asked or request(),
        Classification("code", 0.9, "text", {"language": "en"}),
        Decision(Arm("b"), "why", "ok", "rule", "hash"),
        relay,
        spec,
        epoch="e",
        status=200,
        error_code=None,
        overhead_s=0.001,
        fallback=False,
        conversation="c",
        secret=b"s",
        warm_up=False,
    )


def streamed(asked: GenerateRequest, *, tokens: int = 5) -> Relay:
    relay = Relay(keep_usage=False, keep_metrics=False, fingerprint="f")
    start = asked.arrived
    relay.feed(events(chunk({"role": "assistant", "content": ""})), start + 1.0)
    relay.feed(events(chunk({"content": "a"})), start + 2.0)
    relay.feed(events(chunk({"content": "b"})), start + 3.0)
    relay.feed(events(chunk({}, "stop")), start + 4.0)
    details = {"prompt_tokens_details": {"cached_tokens": 2}}
    relay.feed(events(chunk(None, usage={**USAGE, "completion_tokens": tokens, **details})), start + 4.0)
    return relay


def test_the_clock_of_a_stream() -> None:
    asked = request()
    record = close(streamed(asked), None, asked)
    assert record.ttft_s == pytest.approx(2.0)
    assert record.tpot_s == pytest.approx((4.0 - 2.0) / (5 - 1))
    assert record.itl_s == pytest.approx([1.0, 1.0, 0.0])
    assert record.e2e_s >= 10.0
    assert (record.prompt_tokens, record.completion_tokens, record.cached_tokens) == (5, 5, 2)
    assert (record.request_id, record.finish_reason, record.at) == ("r~1", "stop", 1000.0)
    assert record.end_user not in ("", "u-7")


def test_one_token_has_no_time_per_token() -> None:
    asked = request()
    assert close(streamed(asked, tokens=1), None, asked).tpot_s is None


def test_an_unstreamed_answer_is_timed_by_the_engine() -> None:
    relay = Relay(keep_usage=False, keep_metrics=False, fingerprint="f")
    relay.usage = {"prompt_tokens": 5, "completion_tokens": 11}
    spec = Spec(rounds=2, drafted=8, accepted=5, histogram=[], draft_s=0.1, verify_s=0.3, plain_s=0.6)
    assert close(relay, spec).tpot_s == pytest.approx(0.1)
    assert close(relay, Spec(rounds=2, drafted=8, accepted=5, histogram=[])).tpot_s is None
    spec.step_emitted, spec.step_drafted = [3, 4, 9, 4], [2, 3, 8, 3]  # ten tokens more made up a stop string
    assert close(relay, spec).tpot_s == pytest.approx(0.05)
    assert close(relay).ttft_s is None
    whole = Spec(rounds=0, drafted=0, accepted=0, histogram=[], decode_s=2.0)
    assert close(relay, whole).tpot_s == pytest.approx(0.2)  # of a server that tells no more than that


def test_nothing_sent_nothing_claimed() -> None:
    record = close(None, None, request(user=None))
    assert (record.ttft_s, record.tpot_s, record.prompt_tokens, record.spec) == (None, None, None, None)
    assert (record.itl_s, record.end_user, record.loop) == ([], "", False)


def test_an_error_in_the_stream_is_its_code() -> None:
    relay = Relay(keep_usage=False, keep_metrics=False, fingerprint="f")
    relay.feed(events(chunk({"content": "a"}), {"error": {"message": "x", "code": None, "type": "oom"}}), 1.0)
    assert close(relay).error_code == "oom"
