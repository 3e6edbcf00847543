"""What a report says beyond the page: the randomised comparison, waste, tails, and what to do next. Null: unknown.

Filled by `study`, shown by `render`, `plots` and `pdf`. Every part names the query that it was worked out from.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from gateway.db import Query

ESTIMATOR = "randomised holdout, post-stratified ratio"
ESTIMATOR_NOTE = (
    "A share of conversations is drawn by a keyed hash to stay on plain decoding whatever the statistics say. Their "
    "time per token, within strata of task, context length and share drawn (and temperature, where rows tell it; all "
    "known before the draw), times the tokens of the requests that could have been drawn and were routed is what plain "
    "decoding would have taken; gain = that over the time taken. Requests with one path left by a rule, a veto or the "
    "p99 guard are on neither side. 95 % interval: delta method on the log scale, Student's t, the request as the "
    "sampling unit. Turns of one conversation are drawn together, so the interval is too narrow where conversations "
    "are long. Decode time only: from first token to last."
)
NEEDED = 5
"""Measured requests in the holdout at least, before a gain is shown."""


class Saving(msgspec.Struct):
    """Plain decoding against what was done. Seconds; `saved` is expected less actual, negative where time was lost."""

    gain: float | None = None
    low: float | None = None
    high: float | None = None
    expected_s: float = 0.0
    actual_s: float = 0.0
    saved_s: float | None = None
    saved_low_s: float | None = None
    saved_high_s: float | None = None


class Gain(msgspec.Struct):
    """One task, one application or all of them."""

    scope: Literal["all", "task", "application"]
    name: str
    key_id: str = ""
    """Of an application."""
    requests: int = 0
    """Routed where the draw could have held them, and measured."""
    holdout: int = 0
    """Kept plain by the draw, and measured: of the same strata, over all applications."""
    tokens: int = 0
    compared: float | None = None
    """Share of the routed tokens that lie in strata with a holdout to compare with."""
    time: Saving = msgspec.field(default_factory=Saving)
    """Decode seconds as clients saw them."""
    accelerator: Saving = msgspec.field(default_factory=Saving)
    """Each step's seconds over the sequences that shared it; unknown where a backend does not report its steps."""
    note: str = ""
    query: str = "sums"


class Waste(msgspec.Struct):
    """Draft tokens that were refused, and what they cost."""

    task: str
    drafted: int
    rejected: int
    wasted_s: float
    """Drafting and checking time spent on refused tokens, seconds of requests."""
    wasted_accelerator_s: float | None
    """The same, shared among the sequences of each step."""
    share: float | None
    """Of all decode time of the speculative requests."""
    query: str = "sums"


class TailRow(msgspec.Struct):
    """p99 of one task on both paths, milliseconds, with distribution-free 95 % bounds (None below 299 values)."""

    task: str
    metric: str
    n_plain: int
    n_spec: int
    plain_ms: float | None
    plain_low_ms: float | None
    plain_high_ms: float | None
    spec_ms: float | None
    spec_low_ms: float | None
    spec_high_ms: float | None
    worse: bool | None
    """True or False where the bounds do not overlap."""
    query: str = "tails"


class SpikePoint(msgspec.Struct):
    """One task in one speculative arm at one load."""

    task: str
    arm: str
    load: int
    z: float
    ratio: float
    """p99 TPOT over that of plain decoding of the same task at the same load."""
    n: int


class Spikes(msgspec.Struct):
    """Whether rounds that accept nothing go with a longer tail."""

    points: list[SpikePoint]
    rho: float | None
    """Spearman's rank correlation of z and the ratio over the points."""
    low: float | None
    high: float | None
    verdict: Literal["yes", "no", "unclear", "no_data"]
    text: str
    query: str = "sums, tails"


class Change(msgspec.Struct):
    """How often a task's decision changed, and how it stands."""

    task: str
    count: int
    arm: str
    reason: str
    query: str = "switches"


class Advice(msgspec.Struct):
    """Something to do next."""

    kind: Literal["try_k", "switch_off", "distil", "holdout", "tail"]
    task: str
    text: str
    because: str
    query: str = "sums"


class Study(msgspec.Struct):
    """All of it."""

    estimator: str
    estimator_note: str
    total: Gain
    tasks: list[Gain]
    applications: list[Gain]
    losses: list[Gain]
    """Tasks and applications whose whole interval lies below 1, largest loss first."""
    waste: list[Waste]
    tails: list[TailRow]
    spikes: Spikes
    changes: list[Change]
    advice: list[Advice]
    queries: list[Query]
