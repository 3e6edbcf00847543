"""What engines report or serve wrongly under speculation (vLLM 0.33, SGLang 0.5.23, llama.cpp 0c1e57098)."""

from __future__ import annotations

from typing import Any, TypeVar

import pytest

from gateway.backends.base import Target
from gateway.backends.counters import VLLM
from gateway.backends.engine import EngineBackend
from gateway.backends.generic import GenericBackend
from gateway.backends.http import HttpBackend
from gateway.backends.llamacpp import LlamaCppBackend
from gateway.backends.prometheus import read_metrics
from gateway.backends.sglang import SglangBackend
from gateway.backends.vllm import VllmBackend
from gateway.errors import InvalidRequest
from gateway.routing import build_snapshot, observe
from gateway.routing.vetoes import veto
from gateway.types import Arm, Decision, Identity, Spec
from tests.unit.gateway.routing.build import NOW, backend, record, request
from tests.unit.gateway.routing.test_decide import ask

FAST = Arm("pool", "eagle", 4)
Kind = TypeVar("Kind", bound=HttpBackend)


def adapter(kind: type[Kind]) -> Kind:
    return kind(Target("pool", "http://127.0.0.1:9", "m", (FAST,), secret=b"s"))


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        ("vllm", "min_p", 0.1), ("vllm", "logit_bias", {"5": 1}),  # refused under speculation
        ("sglang", "min_p", 0.1), ("sglang", "logit_bias", {"5": 1}),  # ignored, misapplied
        ("sglang", "presence_penalty", 0.5), ("sglang", "frequency_penalty", 0.5),  # about 1/L of what was asked for
        ("sglang", "repetition_penalty", 1.2), ("sglang", "min_tokens", 8),  # about L times what was asked for
        ("llamacpp", "logprobs", True), ("llamacpp", "top_logprobs", 2),  # 0.0 for drafted tokens
    ],
)  # fmt: skip
def test_a_parameter_that_speculation_breaks_goes_plain(kind: str, name: str, value: Any) -> None:
    state = backend("pool", (Arm("pool"), FAST), kind=kind)
    asked = request(body={"model": "m", "messages": [], name: value})
    assert veto(FAST, state, asked, 10) == f"{name} is not exact there"
    assert veto(Arm("pool"), state, asked, 10) is None
    neutral = {"repetition_penalty": 1.0}.get(name, type(value)())
    assert veto(FAST, state, request(body={"model": "m", "messages": [], name: neutral}), 10) is None


def test_vllm_counts_what_it_accepted_past_the_end_and_steps_never_fall_below_zero() -> None:
    told = {"num_spec_steps": 4, "num_draft_tokens": 16, "num_accepted_draft_tokens": 14}
    payload = {"metrics": {"speculative_decoding": told}, "usage": {"completion_tokens": 15}}
    spec = adapter(VllmBackend).spec(payload)
    assert spec is not None
    assert (spec.accepted, spec.undrafted) == (14, 0)


def test_a_vllm_answer_without_statistics_of_its_own_is_estimated_and_marked() -> None:
    pool = adapter(VllmBackend)
    for rounds, tokens in ((0.0, 0.0), (10.0, 30.0)):
        pool.look({VLLM.rounds: rounds, VLLM.drafted: 4 * rounds, VLLM.accepted: 2 * rounds, VLLM.tokens: tokens})
    spec = pool.spec({"usage": {"completion_tokens": 15}, "choices": [{}, {}]})  # n = 2 carries no metrics
    assert spec is not None
    assert (spec.rounds, spec.accepted, spec.estimated) == (5, 10, True)


def test_vllm_tells_its_own_time_on_either_pool() -> None:
    spec = adapter(VllmBackend).spec({"metrics": {"generation_time_ms": 1500.0, "speculative_decoding": None}})
    assert spec is not None
    assert (spec.rounds, spec.decode_s, spec.estimated) == (0, 1.5, False)


def test_sglangs_gauges_are_reset_all_the_time_and_are_not_read() -> None:
    pool = adapter(SglangBackend)
    for length in ("3.1", "0.0", "2.9"):
        pool.look(read_metrics(f"sglang:spec_accept_length {length}\nsglang:spec_accept_rate {length}\n"))
    assert pool.spec({"usage": {"completion_tokens": 15}}) is None


@pytest.mark.parametrize("kind", [EngineBackend, VllmBackend, SglangBackend])
def test_keys_share_no_prefix_cache_and_choose_none(kind: type[HttpBackend]) -> None:
    pool, decision = adapter(kind), Decision(FAST, "", "ok", "r", "p")
    salts = {
        key: pool.fields(request(identity=Identity(key, key, "app", False)), decision)["cache_salt"]
        for key in ("one", "two")
    }
    assert salts["one"] != salts["two"]
    assert pool.stripped == ("cache_salt",)


@pytest.mark.parametrize("kind", [VllmBackend, SglangBackend, LlamaCppBackend, GenericBackend])
def test_predicted_outputs_are_not_speculation(kind: type[HttpBackend]) -> None:
    details = {"accepted_prediction_tokens": 9, "rejected_prediction_tokens": 3}
    payload = {"usage": {"completion_tokens": 20, "completion_tokens_details": details}}
    assert adapter(kind).spec(payload) is None


def test_llamacpp_leaves_counts_out_where_it_proposed_nothing() -> None:
    server = adapter(LlamaCppBackend)
    payload = {"timings": {"predicted_n": 20, "predicted_ms": 500.0}}
    told = server.spec(payload)
    assert told is not None
    assert (told.rounds, told.undrafted, told.estimated, told.decode_s) == (0, None, False, 0.5)
    server.draft_watch.speculates = True
    spec = server.spec(payload)
    assert spec is not None
    assert (spec.rounds, spec.undrafted, spec.estimated) == (0, 20, True)


def test_llamacpp_ignores_draft_lengths_in_requests_so_none_is_sent() -> None:
    decision = Decision(FAST, "", "ok", "r", "p")
    assert adapter(LlamaCppBackend).fields(request(), decision) == {}


def test_statistics_without_a_histogram_reach_the_change_detector() -> None:
    spec = Spec(rounds=16, drafted=64, accepted=4, histogram=[], undrafted=3, estimated=True)
    ((_, counters),) = observe(record(FAST, [2] * 4 + [1] * 15, [4] * 16 + [0] * 3, spec=spec))
    assert (counters["rnd"], counters["und"], counters["sn"], counters["s"]) == (16, 3, 1, 500)


def test_images_never_go_to_a_server_that_says_it_sees_none() -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    asked = request(body={"model": "m", "messages": [{"role": "user", "content": [part]}]})
    for sees, why in ((False, "sees no images"), (True, None), (None, None)):
        assert veto(Arm("pool"), backend("pool", images=sees), asked, 10) == why
    assert veto(Arm("pool"), backend("pool", images=False), request(), 10) is None
    with pytest.raises(InvalidRequest, match="sees no images"):
        ask(build_snapshot([], {}, now=NOW), request=asked, backends={"pool": backend("pool", images=False)})
