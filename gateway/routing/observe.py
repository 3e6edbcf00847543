"""One finished request → integer increments for the live statistics. Pure; called by the recorder and the simulator.

A cell holds the requests that ran in one arm. Counters (all integers, so that merging is exact in any order):
- `n` requests, `tok` tokens of decode steps, `ct` Σ tokens · mean context, `rnd` rounds, `drf` drafted, `acc` accepted,
  `zero` zero-accept rounds, `und` undrafted steps, `h<j>` rounds with j accepted, `loops` screened out;
- `sn`, `s`, `ss`: requests with rounds and the first two moments of 1,000·√(accepted/rounds), for the change detector;
- `qt<j>`, `qs<j>`: trials and successes at draft position j in 1/64, a request weighing at most 16 trials, and
  `bt`, `bs`, `btt`, `bst`, `bss`: sums over the first 16 rounds of each request (t rounds, s with a token accepted),
  which tell how much requests differ: both feed the in-flight controller's prior;
- `xt<p>`, `xf<p>`, `xa<p>`, `xb<p>`: trials at the first (p = 0) and at later draft positions (p = 1), those after a
  round accepted in full, and the two sums of their odds ratio, all in 1/64 (see `streaks`); `xg<p>`, `xc<p>`, `xd<p>`:
  of the others those after a step without a draft, and the two sums likewise;
- `fn`, `fg`, `fgg`: requests with probe episodes in flight and the plain steps gained by them, in 1/100;
- `mn`, `mtok`, `mt`: requests, tokens and time measured in 100 µs, `mtt`, `mxt`, `mxx` their second moments (time²,
  time·tokens, tokens²), `wn`, `wt` requests that found no queue and their time to first token in 100 µs;
- for each draft length k' that the request reveals `r<k'>`, `u<k'>`, `d<k'>`, `a<k'>`, `z<k'>`: rounds, undrafted
  steps, drafted, accepted, zero rounds; `<f>*<g>`: Σ over requests of the product of two of the features `t` (tokens),
  `r<k'>`, `u<k'>`. Costs are put in on read: one request informs every load. `vn` counts the requests behind these;
- the same names after `~` for requests whose draft length the engine changed in flight: they tell of the arm they ran
  in, never of a shorter draft.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import msgspec

from gateway.bands import context_band, load_band, temperature_band
from gateway.routing.applications import label
from gateway.routing.rounds import (
    DRAFT_LENGTHS,
    MAX_POSITION,
    View,
    closing_run,
    first_trials,
    position_counts,
    probe_gain,
    view_at,
    view_of_histogram,
)
from gateway.routing.stats import FLOWN
from gateway.routing.streaks import streak_counters
from gateway.types import CellKey, RequestRecord, Spec

TIME_UNIT_S = 1e-4
"""Seconds per unit of measured time: a square of 10 minutes is 3.6e13, far from 2^63 even summed over a busy minute."""
MAX_UNITS = 10_000_000
"""Longest measured time that is counted (1,000 s), in units."""
S_UNIT = 1000
"""Units per 1 of √(accepted/rounds)."""
TRIAL_UNIT = 64
"""Units per trial of `qt` and `qs`."""
TRIALS_PER_REQUEST = 16
"""What one request weighs at most in the in-flight prior, in rounds."""
GAIN_UNIT = 100
"""Units per plain step of `fg`."""
QUIET_STEPS = 8
"""Steps without a draft that set a probe episode apart from the rounds before it."""
LOOP_TOKENS = 128
"""An output cut at its limit in the middle of a fully accepted run this long is taken for a repetition loop."""


def observe(record: RequestRecord) -> list[tuple[CellKey, dict[str, int]]]:
    """Return the increments of one record, keyed by cell; empty where it teaches nothing.

    A failed, aborted or fallen-back request teaches nothing, nor do the first ones after a restart of the backend; a
    repetition loop is only counted.
    """
    if record.fallback or record.warm_up or record.status != 200 or not record.completion_tokens:
        return []
    key = cell_key(record)
    if record.loop or looks_like_loop(record):
        return [(key, {"loops": 1})]
    counters = {"n": 1}
    _measured(record, counters)
    if record.spec is not None:
        _acceptance(record, record.spec, counters)
    if "tok" not in counters:
        counters["tok"] = max(0, record.completion_tokens - 1)
    counters["ct"] = counters["tok"] * ((record.prompt_tokens or 0) + record.completion_tokens // 2)
    counters = {name: value for name, value in counters.items() if value}
    if not record.application:
        return [(key, counters)]
    return [(key, counters), (msgspec.structs.replace(key, task=label(key.task, record.application)), counters.copy())]


def cell_key(record: RequestRecord) -> CellKey:
    """Return the cell that a record belongs to; the load is the mean batch it saw, else that at its decision."""
    load = record.decision.load
    if record.spec is not None and record.spec.batch_mean:
        load = round(record.spec.batch_mean)
    arm = record.arm
    return CellKey(
        arm.backend,
        record.epoch,
        arm.method,
        arm.k,
        record.task,
        temperature_band(record.temperature),
        context_band(record.prompt_tokens or 0),
        load_band(load),
    )


def looks_like_loop(record: RequestRecord) -> bool:
    """Return whether the output ran into its limit while everything drafted held: a loop never ends by itself."""
    spec = record.spec
    if spec is None or record.finish_reason != "length" or not spec.step_emitted:
        return False
    return closing_run(spec.step_emitted, spec.step_drafted) >= LOOP_TOKENS


def shape_counters(
    emitted: Sequence[int], drafted: Sequence[int], ran_at: int, lengths: Sequence[int], *, flown: bool = False
) -> dict[str, int]:
    """Return the acceptance counters of a request whose steps are known, at `ran_at` and each shorter of `lengths`.

    `flown`: its draft length changed in flight.
    """
    own = view_at(emitted, drafted, ran_at, ran_at)
    counters = _base(own)
    for e, count in Counter(e for e, d in zip(emitted, drafted, strict=False) if d > 0).items():
        name = f"h{min(e - 1, MAX_POSITION)}"
        counters[name] = counters.get(name, 0) + count
    _positions(*position_counts(emitted, drafted), min(ran_at, MAX_POSITION), counters)
    rounds, hits = first_trials(emitted, drafted, TRIALS_PER_REQUEST)
    counters |= {"bt": rounds, "bs": hits, "btt": rounds * rounds, "bst": rounds * hits, "bss": hits * hits}
    counters |= streak_counters(emitted, drafted)
    views = {k: view_at(emitted, drafted, ran_at, k) for k in sorted(set(lengths)) if 0 < k < ran_at}
    views[ran_at] = own
    counters["tok"] = sum(emitted)
    moments = _moments(sum(emitted), views)
    return counters | ({FLOWN + name: value for name, value in moments.items()} if flown else moments)


def _positions(trials: Sequence[int], passed: Sequence[int], depth: int, counters: dict[str, int]) -> None:
    """Count trials and successes by position, scaled so that the request weighs no more than others."""
    weight = TRIAL_UNIT * min(1.0, TRIALS_PER_REQUEST / trials[0]) if trials[0] else 0.0
    for position in range(depth):
        counters[f"qt{position}"] = round(weight * trials[position])
        counters[f"qs{position}"] = round(weight * passed[position])


def clean_steps(spec: Spec) -> tuple[list[int], list[int]]:
    """Return emitted and drafted by step; a step that delivered nothing (the end of sequence) emitted one token."""
    drafted = [max(0, d) for d in spec.step_drafted]
    return [max(1, min(e, d + 1)) for e, d in zip(spec.step_emitted, drafted, strict=True)], drafted


def _in_flight(record: RequestRecord, emitted: Sequence[int], drafted: Sequence[int], counters: dict[str, int]) -> None:
    """Count a request whose draft length the engine changed on the way: its steps as they ran, its probes' worth."""
    counters |= shape_counters(emitted, drafted, max(record.arm.k, *drafted), (), flown=True)
    rounds, hits = counters["bt"], counters["bs"]
    if rounds:
        s = round(S_UNIT * math.sqrt(hits / rounds))
        counters |= {"sn": 1, "s": s, "ss": s * s}
    speculation = record.decision.speculation
    pairs = dict(speculation.adaptive.break_even) if speculation and speculation.adaptive else {}
    if not pairs:
        return
    longest = max(pairs)
    slope = (pairs[longest] - 1.0) / longest
    episodes, gained = probe_gain(emitted, drafted, lambda d: pairs.get(d, 1.0 + slope * d), QUIET_STEPS)
    if episodes:
        gain = max(-MAX_UNITS, min(MAX_UNITS, round(GAIN_UNIT * gained)))
        counters |= {"fn": 1, "fg": gain, "fgg": gain * gain}


def _acceptance(record: RequestRecord, spec: Spec, counters: dict[str, int]) -> None:
    ran_at = record.arm.k
    lengths = [int(k) for k in record.decision.numbers.get("offered", DRAFT_LENGTHS)]
    if ran_at == 0:
        counters["tok"] = counters["und"] = spec.undrafted or max(0, (record.completion_tokens or 1) - 1)
    elif spec.step_emitted and len(spec.step_emitted) == len(spec.step_drafted):
        emitted, drafted = clean_steps(spec)
        if record.decision.speculation is not None and record.decision.speculation.adaptive is not None:
            _in_flight(record, emitted, drafted, counters)
        else:
            counters |= shape_counters(emitted, drafted, max(ran_at, *drafted), lengths)
    elif spec.histogram:
        undrafted = spec.undrafted or 0
        views = {
            k: view_of_histogram(spec.histogram, undrafted, ran_at, k) for k in {*lengths, ran_at} if 0 < k <= ran_at
        }
        counters |= _base(views[ran_at])
        counters |= {"drf": spec.drafted, "acc": spec.accepted, "rnd": spec.rounds}
        counters |= {f"h{j}": count for j, count in enumerate(spec.histogram)}
        depth = min(ran_at, MAX_POSITION)
        beyond = [sum(spec.histogram[position:]) for position in range(depth + 1)]
        _positions(beyond, beyond[1:], depth, counters)
        counters["tok"] = spec.rounds + spec.accepted + undrafted
        counters |= _moments(counters["tok"], views)
    else:
        counters |= {"rnd": spec.rounds, "drf": spec.drafted, "acc": spec.accepted, "und": spec.undrafted or 0}
        counters |= _for_the_detector(spec.rounds, spec.accepted)


def _base(view: View) -> dict[str, int]:
    counters = {
        "rnd": view.rounds,
        "drf": view.drafted,
        "acc": view.accepted,
        "zero": view.zero,
        "und": view.undrafted,
    }
    return counters | _for_the_detector(view.rounds, view.accepted)


def _for_the_detector(rounds: int, accepted: int) -> dict[str, int]:
    """Return what the change detector takes of a request with rounds."""
    if not rounds:
        return {}
    s = round(S_UNIT * math.sqrt(accepted / rounds))
    return {"sn": 1, "s": s, "ss": s * s}


def _moments(tokens: int, views: dict[int, View]) -> dict[str, int]:
    counters: dict[str, int] = {"vn": 1}
    features = {"t": tokens}
    for k, view in sorted(views.items()):
        counters |= {f"d{k}": view.drafted, f"a{k}": view.accepted, f"z{k}": view.zero}
        features[f"r{k}"] = view.rounds
        features[f"u{k}"] = view.undrafted
    names = [name for name, value in features.items() if value]
    for i, first in enumerate(names):
        for second in names[i:]:
            counters[f"{first}*{second}"] = features[first] * features[second]
    return counters | features


def _measured(record: RequestRecord, counters: dict[str, int]) -> None:
    """Count time per token: the steps' own time where the backend reports it, else what the client saw."""
    seconds: float | None = None
    tokens = max(0, (record.completion_tokens or 0) - 1)
    spec = record.spec
    if spec is not None and spec.plain_s is not None:
        seconds = spec.plain_s + (spec.verify_s or 0.0) + (spec.draft_s or 0.0)
        tokens = sum(spec.step_emitted) or tokens
    elif record.tpot_s is not None:
        seconds = record.tpot_s * tokens
    if seconds is not None and seconds > 0 and tokens:
        units = min(MAX_UNITS, max(1, round(seconds / TIME_UNIT_S)))
        counters |= {"mn": 1, "mtok": tokens, "mt": units}
        counters |= {"mtt": units * units, "mxt": units * tokens, "mxx": tokens * tokens}
    if record.ttft_s is not None and not record.decision.waiting:
        counters |= {"wn": 1, "wt": min(MAX_UNITS, round(record.ttft_s / TIME_UNIT_S))}
