"""One finished request → integer increments for the live statistics. Pure; called by the recorder and the simulator.

A cell holds the requests that ran in one arm. Counters (all integers, so that merging is exact in any order):
`n` requests, `tok` tokens of decode steps, `rnd` rounds, `drf` drafted, `acc` accepted, `zero` zero-accept rounds,
`und` undrafted steps, `h<j>` rounds with j accepted, `pt<j>`/`ps<j>` trials and successes at draft position j,
`sn`/`s`/`ss` requests with rounds and the first two moments of 1,000·√(accepted/rounds), `loops` screened out,
`mn`/`mtok`/`mt` requests, tokens and time measured in 100 µs, `mtt`/`mxt`/`mxx` their second moments (time²,
time·tokens, tokens²), `wn`/`wt` requests and time to first token in 100 µs. For each draft length k' that the request
reveals: `r<k'>`, `u<k'>`, `d<k'>`, `a<k'>`, `z<k'>` rounds, undrafted steps, drafted, accepted, zero rounds; and
`<f>*<g>` the sum over requests of the product of two features out of `t` (tokens), `r<k'>`, `u<k'>`: costs are put in
on read, so that one request informs every load. `vn` counts the requests behind these.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from gateway.bands import context_band, load_band, temperature_band
from gateway.routing.rounds import DRAFT_LENGTHS, MAX_POSITION, View, position_counts, view_at, view_of_histogram
from gateway.types import CellKey, RequestRecord, Spec

TIME_UNIT_S = 1e-4
"""Seconds per unit of measured time: a square of 10 minutes is 3.6e13, far from 2^63 even summed over a busy minute."""
MAX_UNITS = 10_000_000
"""Longest measured time that is counted (1,000 s), in units."""
S_UNIT = 1000
"""Units per 1 of √(accepted/rounds)."""


def observe(record: RequestRecord) -> list[tuple[CellKey, dict[str, int]]]:
    """Return the increments of one record, keyed by cell; empty where it teaches nothing.

    A failed, aborted or fallen-back request teaches nothing; a repetition loop is only counted.
    """
    if record.fallback or record.status != 200 or not record.completion_tokens:
        return []
    key = cell_key(record)
    if record.loop:
        return [(key, {"loops": 1})]
    counters = {"n": 1}
    _measured(record, counters)
    if record.spec is not None:
        _acceptance(record, record.spec, counters)
    if "tok" not in counters:
        counters["tok"] = max(0, record.completion_tokens - 1)
    return [(key, {name: value for name, value in counters.items() if value})]


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


def shape_counters(
    emitted: Sequence[int], drafted: Sequence[int], ran_at: int, lengths: Sequence[int]
) -> dict[str, int]:
    """Return the acceptance counters of a request whose steps are known, at `ran_at` and each shorter of `lengths`."""
    own = view_at(emitted, drafted, ran_at, ran_at)
    counters = _base(own)
    for e, d in zip(emitted, drafted, strict=False):
        if d > 0:
            name = f"h{min(e - 1, MAX_POSITION)}"
            counters[name] = counters.get(name, 0) + 1
    trials, passed = position_counts(emitted, drafted)
    for position in range(min(ran_at, MAX_POSITION)):
        counters[f"pt{position}"] = trials[position]
        counters[f"ps{position}"] = passed[position]
    views = {k: view_at(emitted, drafted, ran_at, k) for k in sorted(set(lengths)) if 0 < k < ran_at}
    views[ran_at] = own
    _moments(sum(emitted), views, counters)
    return counters


def _acceptance(record: RequestRecord, spec: Spec, counters: dict[str, int]) -> None:
    ran_at = record.arm.k
    lengths = [int(k) for k in record.decision.numbers.get("offered", DRAFT_LENGTHS)]
    if ran_at == 0:
        counters["tok"] = counters["und"] = spec.undrafted or max(0, (record.completion_tokens or 1) - 1)
    elif spec.step_emitted and len(spec.step_emitted) == len(spec.step_drafted):
        counters |= shape_counters(spec.step_emitted, spec.step_drafted, max(ran_at, *spec.step_drafted), lengths)
    elif spec.histogram:
        undrafted = spec.undrafted or 0
        views = {
            k: view_of_histogram(spec.histogram, undrafted, ran_at, k) for k in {*lengths, ran_at} if 0 < k <= ran_at
        }
        counters |= _base(views[ran_at])
        counters |= {"drf": spec.drafted, "acc": spec.accepted, "rnd": spec.rounds}
        counters |= {f"h{j}": count for j, count in enumerate(spec.histogram)}
        for position in range(min(ran_at, MAX_POSITION, len(spec.histogram))):
            counters[f"pt{position}"] = sum(spec.histogram[position:])
            counters[f"ps{position}"] = sum(spec.histogram[position + 1 :])
        _moments(spec.rounds + spec.accepted + undrafted, views, counters)
    else:
        counters |= {"rnd": spec.rounds, "drf": spec.drafted, "acc": spec.accepted}


def _base(view: View) -> dict[str, int]:
    counters = {
        "rnd": view.rounds,
        "drf": view.drafted,
        "acc": view.accepted,
        "zero": view.zero,
        "und": view.undrafted,
    }
    if view.rounds:
        s = round(S_UNIT * math.sqrt(view.accepted / view.rounds))
        counters |= {"sn": 1, "s": s, "ss": s * s}
    return counters


def _moments(tokens: int, views: dict[int, View], counters: dict[str, int]) -> None:
    features = {"t": tokens}
    for k, view in sorted(views.items()):
        counters |= {f"d{k}": view.drafted, f"a{k}": view.accepted, f"z{k}": view.zero}
        features[f"r{k}"] = view.rounds
        features[f"u{k}"] = view.undrafted
    names = [name for name, value in features.items() if value]
    for i, first in enumerate(names):
        for second in names[i:]:
            counters[f"{first}*{second}"] = features[first] * features[second]
    counters |= features
    counters["tok"] = tokens
    counters["vn"] = 1


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
    if record.ttft_s is not None:
        counters |= {"wn": 1, "wt": min(MAX_UNITS, round(record.ttft_s / TIME_UNIT_S))}
