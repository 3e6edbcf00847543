"""What each drafter proposes, and the counts of a request's rounds."""

from __future__ import annotations

from typing import Any

import pytest

from engine.control import Controller
from engine.messages import Speculation
from engine.sampler import SamplerState
from engine.sequence import GenerateRequest, SamplingParams, Sequence
from engine.spec_decode.metrics import MAX_STEPS, RequestMetrics
from engine.spec_decode.ngram import NgramProposer, copy_from
from engine.spec_decode.prediction import PredictionFollower
from engine.spec_decode.suffix import SuffixProposer, SuffixStore, vote
from tests.fixtures.core import make_core, random_model, request, run

GREEDY = SamplerState(SamplingParams(temperature=0.0), (), 0)


def sequence(text: str, prompt: int | None = None, prediction: str = "", key: str = "", name: str = "x") -> Sequence:
    tokens = [ord(one) for one in text]
    asked = GenerateRequest(
        name, tokens[:prompt], SamplingParams(), Speculation("ngram", 8), [ord(one) for one in prediction], key
    )
    return Sequence(asked, Controller(8, None), 0.0, tokens, len(tokens) if prompt is None else prompt)


def text_of(tokens: list[int]) -> str:
    return "".join(map(chr, tokens))


def propose(proposer: Any, one: Sequence, k: int = 8) -> str:
    return text_of(proposer.propose([(one, GREEDY, k)])[0].tokens)


@pytest.mark.parametrize(
    ("text", "draft"),
    [
        ("the cat sat; the c", "at sat; "),
        ("abcabcabc", "abcabcab"),
        ("xyzw", ""),
        ("ab", ""),
        ("a", ""),
        ("aXYbXYcXY", "cXYcXYcX"),  # the latest occurrence
        ("1234A 234B 234", "B 234B 2"),  # the latest of equally long ones
        ("1234A 9934B 1234", "A 9934B "),  # the longer match beats the later one
    ],
)
def test_ngram_lookup(text: str, draft: str) -> None:
    assert propose(NgramProposer(), sequence(text)) == draft


def test_ngram_index_grows_with_the_output() -> None:
    proposer = NgramProposer()
    one = sequence("foo bar baz. ")
    assert propose(proposer, one) == ""
    one.tokens.extend(map(ord, "foo b"))
    assert propose(proposer, one, k=3) == "ar "
    proposer.release("x")
    assert not proposer._indices


def test_copying_beyond_the_end_repeats_the_period() -> None:
    assert copy_from([1, 2, 3], 1, 5) == [2, 3, 2, 3, 2]
    assert copy_from([1, 2, 3], 3, 5) == []


def test_suffix_takes_the_longest_match_and_grows_with_it() -> None:
    proposer = SuffixProposer(SuffixStore(0))
    assert propose(proposer, sequence("in the deep sea. at the top. in the d")) == "eep sea."
    assert propose(proposer, sequence("abQ...ab", name="y"), k=8) == "Q..."  # two matched tokens speak for four


def test_suffix_ends_where_the_votes_are_split() -> None:
    source = [ord(one) for one in "abcX abcY abcZ abcW abcV abcU abcT abcS abcR abcQ abcP abcO"]
    ends = [at + 3 for at in range(0, len(source), 5)]
    assert text_of(vote([(3, source, end) for end in ends], 6)) == ""
    assert text_of(vote([(3, source, ends[0]), (9, source, ends[1])], 3)) == "Y a"


def test_past_outputs_stay_within_their_key() -> None:
    store = SuffixStore(100)
    store.add("tenant a", [ord(one) for one in "hello brave new world"])
    proposer = SuffixProposer(store)
    assert propose(proposer, sequence("? hello b", key="tenant a", name="1")) == "rave new"
    assert propose(proposer, sequence("? hello b", key="tenant b", name="2")) == ""


def test_past_outputs_are_bounded() -> None:
    store = SuffixStore(50)
    for at in range(20):
        store.add("a", list(range(at, at + 20)))
    kept = store.get("a")
    assert kept is not None
    assert len(kept.tokens) <= 50
    for at in range(100):
        store.add(str(at), [1, 2, 3])
    assert store.get("a") is None
    off = SuffixStore(0)
    off.add("a", [1, 2, 3])
    assert off.get("a") is None


def test_prediction_is_followed_left_and_found_again() -> None:
    follower = PredictionFollower()
    one = sequence("PROMPT", prediction="let x = 1; let y = 2; done")
    assert text_of(follower.propose(one, 6).tokens) == "let x "
    one.tokens.extend(map(ord, "let x = 7"))
    assert follower.propose(one, 6).tokens == []
    one.tokens.extend(map(ord, "; let"))
    draft = follower.propose(one, 6)
    assert text_of(draft.tokens) == " y = 2"
    assert draft.predicted
    one.tokens.extend(map(ord, " y = 2; done"))
    assert follower.propose(one, 6).tokens == []


def test_predicted_outputs_are_counted_apart() -> None:
    loaded = random_model("llama")
    prompt = list(range(20, 40))
    plain = run(make_core(loaded), [request("a", prompt, ignore_eos=True)])["a"].tokens
    changed = [*plain[:8], (plain[8] + 1) % 200 + 3, *plain[9:]]
    got = run(make_core(loaded), [request("b", prompt, method="ngram", k=4, prediction=changed, ignore_eos=True)])["b"]
    assert got.tokens == plain
    assert got.last is not None
    assert got.last.accepted_prediction_tokens >= 6
    assert got.last.rejected_prediction_tokens >= 1
    without = run(make_core(loaded), [request("c", prompt, method="ngram", k=4, ignore_eos=True)])["c"].last
    assert without is not None
    assert (without.accepted_prediction_tokens, without.rejected_prediction_tokens) == (0, 0)


def test_no_prediction_is_used_on_the_plain_path() -> None:
    loaded = random_model("llama")
    got = run(make_core(loaded), [request("a", [5, 6, 7], prediction=[5, 6, 7, 8])])["a"]
    assert got.metrics.speculative_decoding.num_spec_steps == 0


def test_metrics_add_up() -> None:
    metrics = RequestMetrics()
    for drafted, accepted in ((4, 0), (4, 4), (2, 1), (0, 0), (3, 1)):
        metrics.record(drafted=drafted, accepted=accepted, emitted=accepted + 1, batch=3)
        metrics.charge(drafted=drafted, draft_s=0.25, verify_s=1.0)
    report = metrics.report(switches=2)
    spec, own = report.speculative_decoding, report.breakeven
    assert spec is not None
    assert own is not None
    assert spec.acceptance_histogram == [1, 2, 0, 0, 1]
    assert (spec.num_spec_steps, spec.num_draft_tokens, spec.num_accepted_draft_tokens) == (4, 13, 6)
    assert spec.mean_acceptance_length == 1 + 6 / 4
    assert (own.draft_s, own.verify_s, own.plain_s) == (1.0, 4.0, 1.25)
    assert own.rounds_by_k == {"2": 1, "3": 1, "4": 2}
    assert (own.undrafted, own.switches, own.batch_mean) == (1, 2, 3.0)
    assert own.emitted == [1, 5, 2, 1, 2]
    assert own.drafted == [4, 4, 2, 0, 3]


def test_metrics_without_rounds_and_bounded_lists() -> None:
    metrics = RequestMetrics()
    assert metrics.report(0).breakeven.batch_mean == 0.0  # type: ignore[union-attr]
    for _ in range(MAX_STEPS + 5):
        metrics.record(drafted=0, accepted=0, emitted=1, batch=1)
    report = metrics.report(0)
    assert report.speculative_decoding.mean_acceptance_length == 0.0  # type: ignore[union-attr]
    assert len(report.breakeven.emitted) == MAX_STEPS  # type: ignore[union-attr]
    assert report.breakeven.undrafted == MAX_STEPS + 5  # type: ignore[union-attr]
