"""The demo's arithmetic against cases worked out by hand."""

from __future__ import annotations

import pytest

from cli.demo.client import Sample
from cli.demo.figures import MIN_P99, figures_of, gain, gain_interval, plain_step, rows_of, total_row
from cli.demo.render import to_json
from cli.demo.runner import Decided, Outcome, Pair
from engine.messages import BreakevenMetrics, EngineMetrics, SpeculativeDecodingMetrics


def sample(path="plain", *, concurrency=1, tokens=41, tpot=0.04, metrics=None, task="code", prompt="p"):
    return Sample(
        prompt=prompt,
        task=task,
        concurrency=concurrency,
        path=path,
        arm="engine/x",
        reason="why",
        taken_for=task,
        tokens=tokens,
        ttft_s=0.1,
        tpot_s=tpot,
        metrics=metrics,
    )


def plain_metrics(steps=40, seconds=1.6):
    return EngineMetrics(
        SpeculativeDecodingMetrics([], 0, 0, 0, 0.0, 0.0), BreakevenMetrics(0.0, 0.0, seconds, {}, steps, 0, 1.0)
    )


def spec_metrics(histogram=(2, 1, 1, 6), undrafted=5, draft=0.05, verify=0.5, plain=0.2):
    rounds, accepted = sum(histogram), sum(j * n for j, n in enumerate(histogram))
    return EngineMetrics(
        SpeculativeDecodingMetrics(list(histogram), rounds, 3 * rounds, accepted, 1 + accepted / rounds, 0.7),
        BreakevenMetrics(draft, verify, plain, {"3": rounds}, undrafted, 0, 1.0),
    )


def pair(concurrency=1, **spec):
    return Pair(
        sample(concurrency=concurrency, metrics=plain_metrics(seconds=1.6 * concurrency)),
        sample("speculative", concurrency=concurrency, tpot=0.02, metrics=spec_metrics(**spec)),
    )


def test_figures_of_one_pair_by_hand():
    # 10 rounds, 21 accepted, 2 of them zero; T_plain = 1.6 s / 40 = 40 ms; 36 tokens in 0.75 s.
    figures = figures_of("code", [pair()])
    assert figures.requests == 2
    assert figures.a == pytest.approx(3.1)
    assert figures.z == pytest.approx(0.2)
    assert figures.alpha == pytest.approx(0.05 / 0.4)
    assert figures.beta == pytest.approx(0.5 / 0.4 - 1)
    assert figures.break_even == pytest.approx(1 + 0.125 + 0.25)
    assert figures.gain == pytest.approx(36 * 0.04 / 0.75)


def test_each_concurrency_is_judged_against_its_own_plain_step():
    # The same rounds at concurrency 4, where a plain step takes four times as long, must not count against 40 ms.
    slow = pair(4, draft=0.2, verify=2.0, plain=0.8)
    mixed = [pair(), pair(), pair(), slow]
    assert gain(mixed) == pytest.approx(gain([pair()]))
    assert figures_of("code", mixed).break_even == pytest.approx(figures_of("code", [pair()]).break_even)


def test_a_slow_spell_does_not_change_the_gain():
    spell = Pair(
        sample(metrics=plain_metrics(seconds=16)),
        sample("speculative", metrics=spec_metrics(draft=0.5, verify=5, plain=2)),
    )
    assert gain([pair(), spell]) == pytest.approx(gain([pair()]))
    assert figures_of("code", [pair(), spell]).beta == pytest.approx(figures_of("code", [pair()]).beta)


def test_a_plain_answer_of_few_tokens_is_judged_by_its_level():
    short = Pair(
        sample(tokens=3, metrics=plain_metrics(steps=2, seconds=0.8)), sample("speculative", metrics=spec_metrics())
    )
    many = [pair() for _ in range(100)]
    assert gain([*many, short]) == pytest.approx(gain(many), rel=0.02)


def test_undrafted_steps_count_in_the_gain_and_not_in_a():
    few, many = figures_of("code", [pair(undrafted=0, plain=0.0)]), figures_of("code", [pair(undrafted=50, plain=2.0)])
    assert few.a == many.a
    assert few.gain > many.gain > 1
    assert few.gain == pytest.approx(few.a / few.break_even)


def test_without_engine_figures_the_gain_is_the_clients_and_alpha_beta_stay_unknown():
    figures = figures_of("code", [Pair(sample(tpot=0.04), sample("speculative", tpot=0.025))])
    assert figures.gain == pytest.approx(1.6)
    assert (figures.a, figures.alpha, figures.beta, figures.break_even) == (None, None, None, None)


def test_acceptance_without_costs_shows_only_their_sum():
    only_a = EngineMetrics(spec_metrics().speculative_decoding, None)
    figures = figures_of("code", [Pair(sample(tpot=0.04), sample("speculative", tpot=0.02, metrics=only_a))])
    assert figures.break_even == pytest.approx(3.1 / 2)
    assert figures.alpha is None


def test_no_rounds_means_no_acceptance_rather_than_zero():
    nothing = plain_metrics(seconds=1.7)
    figures = figures_of("code", [Pair(sample(metrics=plain_metrics()), sample("speculative", metrics=nothing))])
    assert figures.a is None
    assert figures.z is None
    assert figures.gain == pytest.approx(1.6 / 1.7)


def test_p99_needs_299_requests_and_the_maximum_does_not():
    few = figures_of("code", [pair()] * (MIN_P99 - 1))
    assert few.tpot_p99_plain_ms is None
    assert few.tpot_max_plain_ms == pytest.approx(40)
    enough = figures_of("code", [pair()] * MIN_P99)
    assert enough.tpot_p99_plain_ms == pytest.approx(40)
    assert enough.tpot_p50_spec_ms == pytest.approx(20)


def test_interval_holds_the_gain_and_needs_three_pairs():
    pairs = [pair(verify=0.3 + 0.02 * i) for i in range(12)]
    low, high = gain_interval(pairs, resamples=300)
    assert low < gain(pairs) < high
    assert gain_interval(pairs[:2]) == (None, None)


def test_plain_step_falls_back_to_the_clients_clock():
    assert plain_step([Pair(sample(tpot=0.05), sample("speculative"))]) == pytest.approx(0.05)
    assert plain_step([Pair(sample(tpot=None), sample("speculative"))]) is None


def test_json_has_exactly_the_contracts_fields_and_the_decision():
    outcome = Outcome(
        "m", [pair() for _ in range(3)], {"code": Decided("speculative", "engine/ngram-k4", "why")}, [], 3, 1.5
    )
    got = to_json(outcome, rows_of(outcome, ["code", "chat"]), total_row(outcome))
    expected = [
        *("task", "requests", "a", "z", "alpha", "beta", "break_even", "gain"),
        *("tpot_p50_plain_ms", "tpot_p50_spec_ms", "tpot_p99_plain_ms", "tpot_p99_spec_ms"),
        *("tpot_max_plain_ms", "tpot_max_spec_ms", "path", "reason"),
    ]
    assert set(got) == {"tasks", "totals"}
    assert [list(row) for row in got["tasks"]] == [expected, expected]
    assert got["tasks"][0]["path"] == "speculative"
    assert got["tasks"][0]["requests"] == 6
    assert got["tasks"][1]["a"] is None
    assert got["totals"]["requests"] == 6
    assert got["totals"]["wins"] == ["code"]
    assert got["totals"]["taken_for_expected_task"] == 1.0
