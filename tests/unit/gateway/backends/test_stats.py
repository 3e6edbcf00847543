"""Statistics in every engine's own form. Shapes: vLLM 0.33, SGLang 0.5.23, llama.cpp's server, our engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.backends.base import Target
from gateway.backends.counters import DRAFTED, ROUNDS, VLLM, CounterShare, RoundShare
from gateway.backends.prometheus import read_metrics
from gateway.backends.stats import engine_spec, llamacpp_spec, sglang_spec, vllm_spec
from gateway.backends.vllm import VllmBackend
from gateway.types import Arm
from tests.fixtures.servers import METRICS

RECORDED = Path(__file__).parents[3] / "fixtures" / "recorded"


def files_of(name: str) -> str:
    return (RECORDED / name).read_text(encoding="utf-8")


PAGE = """# HELP vllm:num_requests_running Number of requests
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
vllm:spec_decode_num_drafts_total{model_name="a, b} c"} 1e+02
process_start_time_seconds 1.7960672e+09
vllm:kv_cache_usage_perc NaN
garbage
"""


def test_our_engines_metrics_are_read_whole() -> None:
    spec = engine_spec({"metrics": METRICS})
    assert spec is not None
    assert (spec.rounds, spec.drafted, spec.accepted, spec.histogram) == (3, 6, 4, [1, 0, 2])
    assert (spec.draft_s, spec.verify_s, spec.plain_s, spec.undrafted) == (0.001, 0.02, 0.0, 0)
    assert spec.rounds_by_k == {"2": 3}
    assert not spec.estimated


def test_vllms_shape_alone_is_enough() -> None:
    payload = {"metrics": {"speculative_decoding": METRICS["speculative_decoding"]}}
    for read in (engine_spec, vllm_spec):
        spec = read(payload)
        assert spec is not None
        assert (spec.rounds, spec.accepted, spec.plain_s) == (3, 4, None)
    only_histogram = {"metrics": {"speculative_decoding": {"acceptance_histogram": [1, 2, 3]}}}
    spec = vllm_spec(only_histogram)
    assert spec is not None
    assert (spec.rounds, spec.accepted) == (6, 8)


@pytest.mark.parametrize("read", [engine_spec, vllm_spec, llamacpp_spec, sglang_spec])
@pytest.mark.parametrize(
    "payload",
    [{}, {"metrics": None}, {"metrics": 4}, {"metrics": {}}, {"metrics": {"speculative_decoding": None}},
     {"timings": None}, {"timings": {"predicted_n": 3}}, {"choices": [None, 4]}, {"meta_info": []}, {"sglext": {}}],
)  # fmt: skip
def test_what_reports_nothing_is_none(read: Any, payload: dict[str, Any]) -> None:
    assert read(payload) is None


def test_a_real_vllms_recorded_answers_are_read() -> None:
    recorded = json.loads(files_of("vllm-0.32.0.json"))
    last = json.loads(recorded["stream"].rsplit("data: {", 1)[1].join(["{", ""]).split("\n", 1)[0])
    for payload in (recorded["chat"], last):
        spec = vllm_spec(payload)
        assert spec is not None
        assert (spec.rounds, spec.drafted, spec.accepted, spec.histogram) == (3, 12, 12, [0, 0, 0, 0, 3])
        assert spec.undrafted == 1  # 17 tokens: one with the prompt, three rounds of five, one step without a draft
    samples = read_metrics(recorded["metrics"])
    assert samples[VLLM.rounds] == 6
    assert samples[VLLM.drafted] == samples[VLLM.accepted] == 24  # the two answers above, by vLLM's own count
    assert samples[VLLM.tokens] == 34
    assert samples["process_start_time_seconds"] > 1.79e9
    assert "not yet supported with speculative decoding" in recorded["min_p"]["error"]["message"]


def test_llamacpp_counts_tokens_only() -> None:
    spec = llamacpp_spec({"timings": {"draft_n": 40, "draft_n_accepted": 25, "predicted_n": 60}})
    assert spec is not None
    assert (spec.rounds, spec.drafted, spec.accepted, spec.estimated) == (0, 40, 25, True)


def test_llamacpps_rounds_come_from_its_totals() -> None:
    answer = {"timings": {"draft_n": 40, "draft_n_accepted": 25, "predicted_n": 60}}
    share = RoundShare()

    def rounds(tokens: int = 60) -> tuple[int, int | None]:
        spec = llamacpp_spec(answer)
        assert spec is not None
        filled = share.rounds(spec, tokens, longest=8)
        return filled.rounds, filled.undrafted

    assert rounds() == (5, 30)  # nothing seen yet: every draft as long as it may be
    share.look({DRAFTED: 400, ROUNDS: 100})
    assert rounds() == (10, 25)
    share.look({DRAFTED: 400 + 800, ROUNDS: 100 + 100})  # half of what was, and what is new
    assert rounds() == (6, 29)
    share.look({DRAFTED: 20, ROUNDS: 10})  # restarted
    assert rounds() == (20, 15)
    assert rounds(tokens=30) == (5, 0)  # never more rounds than steps
    nothing = llamacpp_spec({"timings": {"draft_n": 0, "draft_n_accepted": 0}})
    assert nothing is not None
    assert share.rounds(nothing, 12, 8).rounds == 0


def test_sglangs_histogram_is_what_counts() -> None:
    details = {
        "spec_verify_ct": 10,
        "spec_num_proposed_drafts": 30,
        "spec_num_correct_drafts": 11,
        "spec_correct_drafts_histogram": [4, 2, 2, 2],
    }
    for payload in ({"sglext": {"spec_tokens_details": details}}, {"meta_info": details}):
        spec = sglang_spec(payload)
        assert spec is not None
        assert (spec.rounds, spec.drafted, spec.accepted, spec.histogram) == (10, 30, 12, [4, 2, 2, 2])
    spec = sglang_spec({"meta_info": {**details, "spec_correct_drafts_histogram": [4]}})  # not of this request
    assert spec is not None
    assert spec.accepted == 11


@pytest.mark.parametrize(
    "payload",
    [
        {
            "sglext": {
                "spec_tokens_details": {"spec_verify_ct": 10, "spec_accept_token_num": 12, "spec_draft_token_num": 30}
            }
        },
        {"meta_info": {"spec_verify_ct": 10, "accepted_tokens": 12, "draft_tokens": 30}},
        {"choices": [{"meta_info": {"spec_verify_ct": 10, "num_accepted_tokens": 12, "num_draft_tokens": 30}}]},
    ],
)
def test_sglangs_old_and_new_names(payload: dict[str, Any]) -> None:
    spec = sglang_spec(payload)
    assert spec is not None
    assert (spec.rounds, spec.drafted, spec.accepted) == (10, 30, 12)


def test_a_prometheus_page_is_summed_over_labels() -> None:
    samples = read_metrics(PAGE)
    assert samples["vllm:num_requests_running"] == 5
    assert samples["vllm:spec_decode_num_drafts_total"] == 100
    assert samples["process_start_time_seconds"] == 1796067200
    assert "vllm:kv_cache_usage_perc" not in samples


def look(rounds: float, drafted: float, accepted: float, tokens: float) -> dict[str, float]:
    return dict(zip((VLLM.rounds, VLLM.drafted, VLLM.accepted, VLLM.tokens), (rounds, drafted, accepted, tokens),
                    strict=True))  # fmt: skip


def backend_with_totals(rounds: float, drafted: float, accepted: float) -> VllmBackend:
    """Return a vLLM pool whose totals gained this much in 100 tokens."""
    pool = VllmBackend(Target("pool", "http://127.0.0.1:9", "m", (Arm("pool", "eagle", 4),), secret=b"s"))
    pool.look(look(0, 0, 0, 0))
    pool.look(look(rounds, drafted, accepted, 100))
    return pool


@pytest.mark.parametrize(("tokens", "totals"), [(1, (56, 224, 44)), (2, (95, 380, 5)), (8, (95, 380, 5))])
def test_short_answers_do_not_make_a_draft_that_holds_look_dead(tokens: int, totals: tuple[int, int, int]) -> None:
    pool = backend_with_totals(*totals)
    told = [pool._read({"usage": {"completion_tokens": tokens}}) for _ in range(1000)]
    assert not pool.draft_watch.dead
    specs = [spec for spec in told if spec is not None]
    assert all(spec.accepted <= spec.drafted for spec in specs)
    assert sum(spec.accepted for spec in specs) == pytest.approx(totals[2] * 10 * tokens if tokens > 1 else 0, abs=1)


def test_short_answers_show_a_draft_that_died() -> None:
    pool = backend_with_totals(100, 400, 0)
    for _ in range(100):
        pool._read({"usage": {"completion_tokens": 8}})
    assert pool.draft_watch.dead


def test_a_response_gets_its_share_of_the_totals() -> None:
    totals = CounterShare(VLLM)
    answer = {"usage": {"completion_tokens": 50}}
    assert totals.spec(answer) is None
    totals.look(look(1000, 4000, 1500, 2500))
    assert totals.spec(answer) is None  # one look tells no gain
    totals.look(look(1040, 4160, 1560, 2600))  # 100 tokens in 40 rounds
    spec = totals.spec(answer)
    assert spec is not None
    assert (spec.rounds, spec.drafted, spec.accepted, spec.estimated) == (20, 80, 30, True)
    totals.look(look(1040, 4160, 1560, 2600))  # nothing happened: what was known stays
    assert totals.spec(answer) == spec
    assert totals.spec({"usage": None}) is None
    totals.look(look(5, 20, 5, 10))  # restarted
    assert totals.spec(answer) is None
    totals.look({})
    assert totals.spec(answer) is None
