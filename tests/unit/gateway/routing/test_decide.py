"""The decision on whole snapshots: what it picks, what it must never pick, and what it says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidRequest, NotFound, Unavailable
from gateway.policy.schema import BreakEven
from gateway.routing import Snapshot, build_snapshot, decide, empty_snapshot, summarize
from gateway.types import Arm, Decision
from tests.unit.gateway.routing.build import ARMS, NOW, backend, costs, identity, learned, request, rule, task


def ask(snapshot: Snapshot, draw: float = 0.999, **changes: object) -> Decision:
    options: dict[str, object] = {
        "request": request(),
        "rule": rule(),
        "backends": {"engine": backend()},
        "prompt_tokens": 50,
        "conversation": "",
    } | changes
    return decide(
        options["request"],  # type: ignore[arg-type]
        task(),
        options["rule"],  # type: ignore[arg-type]
        snapshot,
        options["backends"],  # type: ignore[arg-type]
        prompt_tokens=options["prompt_tokens"],  # type: ignore[arg-type]
        draw=draw,
        policy="abc",
        conversation=options["conversation"],  # type: ignore[arg-type]
    )


def test_speculates_where_acceptance_is_high() -> None:
    decision = ask(learned(0.9))
    assert decision.arm == Arm("engine", "ngram", 8)
    assert decision.state == "ok"
    numbers = decision.numbers
    assert numbers["a"] > numbers["break_even"] == pytest.approx(1 + 8 * 0.1)
    assert decision.reason.startswith("speculative engine/ngram-k8: a ")
    assert f"a {numbers['a']:.2f} > 1 + 0.40 + 0.40 (" in decision.reason
    assert decision.plain_s == pytest.approx(0.01)


def test_shortens_the_draft_before_it_turns_off() -> None:
    """At p = 0.6 and 10 % a token, k = 8 loses and k = 2 wins: known from requests that all ran at 8."""
    decision = ask(learned(0.55))
    assert decision.arm == Arm("engine", "ngram", 2)


def test_stays_plain_where_drafts_miss() -> None:
    decision = ask(learned(0.05))
    assert decision.arm == Arm("engine")
    assert decision.state == "ok"
    assert "<= 1 + " in decision.reason
    assert decision.reason.startswith("plain engine/plain: ngram-k2 a 1.0")


def test_no_data_with_costs_tries_the_arm_that_may_gain_most() -> None:
    snapshot = build_snapshot([], {"engine": costs()}, now=NOW, arms={"engine": ARMS})
    decision = ask(snapshot)
    assert decision.state == "no_data"
    assert decision.arm.k > 0


def test_no_data_without_costs_takes_the_fallback_and_probes() -> None:
    snapshot = empty_snapshot(NOW)
    assert ask(snapshot).arm == Arm("engine")
    assert ask(snapshot).state == "no_data"
    assert ask(snapshot, rule=rule(fallback_path="speculative")).arm.k > 0
    probe = ask(snapshot, draw=0.01)
    assert (probe.state, probe.arm.path) == ("probe", "speculative")
    assert probe.incumbent == "engine/plain"


def test_the_rules_own_share_bounds_probes() -> None:
    snapshot = empty_snapshot(NOW)
    for share in (0.0, 0.02, 0.3):
        states = [ask(snapshot, draw=(i + 0.5) / 1000, rule=rule(probe=share)).state for i in range(1000)]
        assert states.count("probe") == 1000 * share


def test_stale_statistics_take_the_fallback() -> None:
    snapshot = learned(0.9)
    snapshot.stale = True
    decision = ask(snapshot)
    assert (decision.arm, decision.state) == (Arm("engine"), "stale")
    assert "stale" in decision.reason


def test_a_forced_plain_answer_still_says_what_is_known_of_speculation() -> None:
    decision = ask(learned(0.9), request=request(path_wish="plain"))
    assert decision.reason.startswith("plain engine/plain: forced by the request; ngram-k")
    assert " > 1 + 0." in decision.reason
    nothing = ask(build_snapshot((), {"engine": costs()}, now=NOW), request=request(path_wish="plain"))
    assert nothing.reason == "plain engine/plain: forced by the request; nothing known of a speculative arm"


def test_forced_path_and_arm_are_obeyed_only_where_the_key_may() -> None:
    snapshot = learned(0.9)
    assert ask(snapshot, request=request(path_wish="plain")).arm.k == 0
    forced = ask(snapshot, request=request(arm_wish=Arm("engine", "ngram", 2)))
    assert (forced.arm.k, forced.state) == (2, "forced")
    assert ask(snapshot, request=request(path_wish="plain", identity=identity(False))).arm.k == 8
    with pytest.raises(NotFound, match="engine/ngram-k8"):
        ask(snapshot, request=request(arm_wish=Arm("engine", "eagle", 2)))


def test_off_is_never_absorbing() -> None:
    snapshot = learned(0.05)
    states = {ask(snapshot, draw=i / 2000).state for i in range(2000)}
    assert states == {"ok", "probe"}


def test_margin_of_the_rule_prefers_plain() -> None:
    assert ask(learned(0.55), rule=rule(break_even=BreakEven(margin=0.5))).arm.k == 0


def test_margin_of_the_rule_holds_in_flight_too() -> None:
    """Drafts gain here, but less than half: a rule that asks for so much stays plain, says why, and goes on looking."""
    snapshot, adaptive = learned(0.55), {"engine": backend(adaptive=True)}
    asked = rule(break_even=BreakEven(margin=0.5))
    decision = ask(snapshot, rule=asked, backends=adaptive)
    assert (decision.arm, decision.state) == (Arm("engine"), "policy")
    assert "policy, margin 50.0% not reached, ngram-k" in decision.reason
    assert ask(snapshot, rule=rule(break_even=BreakEven(margin=0.01)), backends=adaptive).arm.k > 0
    states = {ask(snapshot, rule=asked, backends=adaptive, draw=i / 200).state for i in range(200)}
    assert "probe" in states


def test_holdout_splits_by_conversation() -> None:
    snapshot = learned(0.9)
    held = [ask(snapshot, rule=rule(holdout=0.5), conversation=f"c{i}") for i in range(400)]
    paths = [d.arm.path for d in held if d.state == "holdout"]
    assert 140 < len(paths) < 260
    assert 0.35 < paths.count("plain") / len(paths) < 0.65
    assert {d.propensity for d in held if d.state == "holdout"} == {0.25}
    again = ask(snapshot, rule=rule(holdout=0.5), conversation="c1", draw=0.3)
    assert (again.state == "holdout") == (held[1].state == "holdout")


def test_the_share_of_the_holdout_is_told_of_what_it_could_have_held_only() -> None:
    snapshot, drawn = learned(0.9), rule(holdout=0.02)
    assert {ask(snapshot, rule=drawn, draw=i / 100).holdout for i in range(100)} == {0.02}
    assert {ask(snapshot, rule=drawn, draw=i / 100).state for i in range(100)} >= {"ok", "holdout"}
    assert ask(snapshot, rule=rule(holdout=0.02, path="plain")).holdout == 0
    assert ask(snapshot, rule=rule(holdout=0.02, path="speculative")).holdout == 0
    assert ask(snapshot, rule=drawn, request=request(path_wish="plain", identity=identity())).holdout == 0
    assert ask(snapshot, rule=rule(holdout=0.0)).holdout == 0
    snapshot = learned(0.9)
    snapshot.stale = True
    assert ask(snapshot, rule=drawn).holdout == 0


def test_window_and_tools_have_errors_of_their_own() -> None:
    with pytest.raises(InvalidRequest) as window:
        ask(learned(0.9), prompt_tokens=4000)
    assert window.value.code == "context_length_exceeded"
    body = {"model": "m", "messages": [], "tools": [{"type": "function"}]}
    with pytest.raises(InvalidRequest) as tools:
        ask(learned(0.9), request=request(body=body), backends={"engine": backend(has_tool_template=False)})
    assert tools.value.param == "tools"
    with pytest.raises(Unavailable, match="died"):
        ask(learned(0.9), backends={"engine": backend(healthy=False, detail="died")})


PARAMETERS = st.dictionaries(
    st.sampled_from(["min_p", "logit_bias", "logprobs", "presence_penalty", "tools"]),
    st.sampled_from([None, 0, 0.5, True, {"1": 2}]),
)


@given(
    p=st.sampled_from([0.05, 0.5, 0.9]),
    draw=st.floats(0, 1, exclude_max=True),
    kind=st.sampled_from(["engine", "vllm", "sglang", "llamacpp", "openai"]),
    body=PARAMETERS,
    lengths=st.sampled_from([None, (2,), (4, 8), (3,)]),
    path=st.sampled_from(["auto", "plain", "speculative"]),
    holdout=st.sampled_from([0.0, 0.3]),
    stale=st.booleans(),
)
def test_never_picks_what_is_vetoed_or_not_allowed(p, draw, kind, body, lengths, path, holdout, stale) -> None:
    snapshot = SNAPSHOTS[p]
    snapshot.stale = stale
    allowed = rule(draft_lengths=lengths, path=path, holdout=holdout)
    state = backend(kind=kind)
    decision = ask(snapshot, draw, request=request(body=body), rule=allowed, backends={"engine": state})
    assert str(decision.arm) not in {veto.split(":")[0] for veto in decision.vetoes}
    assert allowed.lists(decision.arm)
    if path != "auto" and allowed.path != decision.arm.path:
        assert not [arm for arm in ARMS if allowed.allows(arm) and str(arm) not in str(decision.vetoes)]
    assert decision.reason.isascii()
    assert "\n" not in decision.reason
    assert 0 < decision.propensity <= 1


SNAPSHOTS = {p: learned(p) for p in (0.05, 0.5, 0.9)}


def test_summary_shows_each_task_with_its_arms() -> None:
    (row,) = summarize(learned(0.9), ["code"])
    assert (row.task, row.arm, row.state, row.requests) == ("code", "engine/ngram-k8", "ok", 60)
    by_name = {arm.arm: arm for arm in row.arms}
    assert by_name["engine/ngram-k2"].requests == 60
    best = by_name["engine/ngram-k8"]
    assert best.gain_low < best.gain < best.gain_high
    assert best.a_low < best.a < best.a_high
    assert row.reason.startswith("speculative engine/ngram-k8: a ")
