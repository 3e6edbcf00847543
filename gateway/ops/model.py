"""What the operations page and `breakeven report` show. Filled by `collect`, read by `render` and scripts."""

from __future__ import annotations

import msgspec

from gateway.db import ActivitySums, AuditResult, AuditSums
from gateway.histogram import LogHistogram, needed_n
from gateway.ops.costs import Costed
from gateway.ops.study_model import Study

MIN_P99 = needed_n(0.99)
"""299: below this many requests no distribution-free 95 % bound on p99 exists, and none is shown."""


class PathSums(msgspec.Struct):
    """One task on one path within the window: the roll-ups' sums and the merged latencies."""

    sums: ActivitySums = msgspec.field(default_factory=ActivitySums)
    tpot: LogHistogram = msgspec.field(default_factory=LogHistogram)
    ttft: LogHistogram = msgspec.field(default_factory=LogHistogram)
    itl: LogHistogram = msgspec.field(default_factory=LogHistogram)
    costed: Costed = msgspec.field(default_factory=Costed)
    """Of the speculative path: its steps' times beside those of plain decoding at the same load."""


class TaskFigures(msgspec.Struct):
    """One task (or all of them): figures of `breakeven demo --json`, and the decision in force. Null: unknown."""

    task: str
    requests: int = 0
    errors: int = 0
    tokens: int = 0
    requests_plain: int = 0
    requests_spec: int = 0
    rounds: int = 0
    drafted_share: float | None = None
    """Rounds among all decode steps of speculative requests."""
    a: float | None = None
    z: float | None = None
    alpha: float | None = None
    beta: float | None = None
    break_even: float | None = None
    gain: float | None = None
    gain_low: float | None = None
    gain_high: float | None = None
    held: int = 0
    """Requests that the randomised holdout kept plain."""
    holdout_gain: float | None = None
    """Against those: time they would have taken over time taken, all requests that the draw could have held."""
    holdout_low: float | None = None
    holdout_high: float | None = None
    tpot_p50_plain_ms: float | None = None
    tpot_p50_spec_ms: float | None = None
    tpot_p99_plain_ms: float | None = None
    tpot_p99_spec_ms: float | None = None
    tpot_max_plain_ms: float | None = None
    tpot_max_spec_ms: float | None = None
    ttft_p50_plain_ms: float | None = None
    ttft_p50_spec_ms: float | None = None
    path: str = ""
    """The path that the next ordinary request of this task takes; empty where nothing is known."""
    arm: str = ""
    state: str = ""
    reason: str = ""


class PathFigures(msgspec.Struct):
    """One path over all tasks, as clients saw it. Null where unknown; a p99 needs 299 values."""

    path: str
    requests: int = 0
    errors: int = 0
    tokens: int = 0
    ttft_p50_ms: float | None = None
    ttft_p99_ms: float | None = None
    tpot_p50_ms: float | None = None
    tpot_p99_ms: float | None = None
    itl_p50_ms: float | None = None
    """Gap between two events; an event of the speculative path may carry several tokens."""
    itl_p99_ms: float | None = None
    overhead_ms: float | None = None
    """Mean time from arrival to the request being sent upstream."""


class ArmFigures(msgspec.Struct):
    """One task in one speculative arm at one load band."""

    task: str
    arm: str
    k: int
    load: int
    """Running sequences: 1, 2 (2-3), 4 (4-7), 8 (8-15), …"""
    requests: int = 0
    a: float | None = None
    z: float | None = None
    break_even: float | None = None
    gain: float | None = None
    gain_low: float | None = None
    gain_high: float | None = None


class ApplicationFigures(msgspec.Struct):
    """What one API key used."""

    key_id: str
    name: str = ""
    requests: int = 0
    errors: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    speculative_share: float | None = None
    """Of its requests."""


class Health(msgspec.Struct):
    """One store or backend."""

    name: str
    ok: bool
    detail: str = ""


class Switched(msgspec.Struct):
    """One line of the switch log."""

    at: float
    """Unix time."""
    task: str
    band: str
    old_arm: str
    new_arm: str
    reason: str


class Report(msgspec.Struct):
    """Everything on the page."""

    generated_at: float
    """Unix time."""
    since_s: float
    """Length of the window, seconds back from `generated_at`."""
    tasks: list[TaskFigures]
    totals: TaskFigures
    paths: list[PathFigures] = msgspec.field(default_factory=list)
    arms: list[ArmFigures] = msgspec.field(default_factory=list)
    """By task, draft length and load band."""
    applications: list[ApplicationFigures] = msgspec.field(default_factory=list)
    """Busiest first."""
    health: list[Health] = msgspec.field(default_factory=list)
    model: str = ""
    policy: str = ""
    """The policy's content hash."""
    switches: list[Switched] = msgspec.field(default_factory=list)
    """Newest first."""
    audits: list[AuditSums] = msgspec.field(default_factory=list)
    """Losslessness audits of live traffic by speculative arm, to the hour."""
    parted: list[AuditResult] = msgspec.field(default_factory=list)
    """Audited answers that were not equal, newest first; no text."""
    source: str = ""
    """Where the figures were read from, for whoever wants to check them."""
    study: Study | None = None
    """What reports say beyond the page; the page has none."""
