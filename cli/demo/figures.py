"""From paired samples to the design's numbers: a, z, α, β, break-even, gain, TPOT. Pure. Called by `command`."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from cli.demo.client import Sample
from cli.demo.runner import Outcome, Pair

MIN_P99 = 299
"""Below this many requests a distribution-free 95 % bound on p99 does not exist."""
_MIN_TOKENS = 12
_RESAMPLES = 1000


@dataclass(slots=True)
class Figures:
    """The contract of `breakeven demo --json`, one task; null where it could not be measured."""

    task: str
    requests: int = 0
    a: float | None = None
    z: float | None = None
    alpha: float | None = None
    beta: float | None = None
    break_even: float | None = None
    gain: float | None = None
    tpot_p50_plain_ms: float | None = None
    tpot_p50_spec_ms: float | None = None
    tpot_p99_plain_ms: float | None = None
    tpot_p99_spec_ms: float | None = None
    tpot_max_plain_ms: float | None = None
    tpot_max_spec_ms: float | None = None
    path: str = ""
    reason: str = ""


@dataclass(slots=True)
class Row:
    """One task: the contract's figures and what only the table shows."""

    figures: Figures
    low: float | None = None
    """The gain's 95 % bootstrap interval over pairs."""
    high: float | None = None
    drafted_share: float | None = None
    """Rounds among all decode steps of the speculative requests; the rest had nothing to propose."""
    by_concurrency: dict[int, float | None] = field(default_factory=dict)
    """Gain at each concurrency."""

    @property
    def verdict(self) -> str:
        """`wins`, `loses`, `level` where the interval holds 1 (or pairs are too few for one), `unknown` without any."""
        if self.figures.gain is None:
            return "unknown"
        if self.low is not None and self.low > 1:
            return "wins"
        return "loses" if self.high is not None and self.high < 1 else "level"


@dataclass(slots=True)
class _Sums:
    """Σ over the speculative requests, each time beside what plain steps at the same load would have taken."""

    rounds: int = 0
    accepted: int = 0
    zero: int = 0
    undrafted: int = 0
    draft_s: float = 0.0
    verify_s: float = 0.0
    round_plain_s: float = 0.0
    """rounds × T_plain of the same pair."""
    token_plain_s: float = 0.0
    """tokens × T_plain of the same pair: what plain decoding would have taken for the same output."""
    time_s: float = 0.0


def plain_step(pairs: Iterable[Pair]) -> float | None:
    """Return T_plain: mean seconds of a plain decode step, by the engine's figures or else by this clock."""
    steps, seconds = 0, 0.0
    for pair in pairs:
        cost = pair.plain.metrics.breakeven if pair.plain.metrics else None
        if cost is not None and cost.undrafted:
            steps += cost.undrafted
            seconds += cost.plain_s
        elif pair.plain.tpot_s is not None:
            steps += pair.plain.tokens - 1
            seconds += pair.plain.tpot_s * (pair.plain.tokens - 1)
    return seconds / steps if steps and seconds > 0 else None


def _add(sums: _Sums, sample: Sample, plain_s: float) -> None:
    """Add one speculative request."""
    spec = sample.metrics.speculative_decoding if sample.metrics else None
    cost = sample.metrics.breakeven if sample.metrics else None
    if spec is not None:
        sums.rounds += spec.num_spec_steps
        sums.accepted += spec.num_accepted_draft_tokens
        sums.zero += spec.acceptance_histogram[0] if spec.acceptance_histogram else 0
    if spec is not None and cost is not None:
        sums.undrafted += cost.undrafted
        sums.draft_s += cost.draft_s
        sums.verify_s += cost.verify_s
        sums.round_plain_s += spec.num_spec_steps * plain_s
        tokens = spec.num_spec_steps + spec.num_accepted_draft_tokens + cost.undrafted
        sums.token_plain_s += tokens * plain_s
        sums.time_s += cost.draft_s + cost.verify_s + cost.plain_s
    elif sample.tpot_s is not None:
        sums.token_plain_s += (sample.tokens - 1) * plain_s
        sums.time_s += (sample.tokens - 1) * sample.tpot_s


def _sum(pairs: Sequence[Pair]) -> _Sums:
    """Add up all pairs, each against its own plain request: same prompt, same concurrency, seconds apart.

    So a machine that is slower for a while slows both halves of a pair and not the ratio. A plain answer of a few
    tokens says too little; the plain requests of the same concurrency stand in for it.
    """
    sums = _Sums()
    for concurrency in {p.plain.concurrency for p in pairs}:
        level = [p for p in pairs if p.plain.concurrency == concurrency]
        for pair in level:
            step = plain_step([pair]) if pair.plain.tokens >= _MIN_TOKENS else plain_step(level)
            if step is not None:
                _add(sums, pair.speculative, step)
    return sums


def gain(pairs: Sequence[Pair]) -> float | None:
    """Return G = Σtokens · T_plain / Σtime over all steps of the speculative requests."""
    sums = _sum(pairs)
    return sums.token_plain_s / sums.time_s if sums.time_s > 0 else None


def gain_interval(pairs: Sequence[Pair], *, resamples: int = _RESAMPLES) -> tuple[float | None, float | None]:
    """Return the 95 % percentile bootstrap interval of the gain; the pair is the sampling unit."""
    if len(pairs) < 3:
        return None, None
    draw = random.Random(len(pairs))  # noqa: S311 (a repeatable bootstrap, nothing secret)
    gains = [g for _ in range(resamples) if (g := gain(draw.choices(pairs, k=len(pairs)))) is not None]
    if not gains:
        return None, None
    gains.sort()
    return gains[int(0.025 * len(gains))], gains[min(len(gains) - 1, int(0.975 * len(gains)))]


def _tpot_ms(samples: Iterable[Sample]) -> tuple[float | None, float | None, float | None]:
    """Return TPOT p50, p99 (None below 299 requests) and maximum, milliseconds."""
    times = sorted(1000 * s.tpot_s for s in samples if s.tpot_s is not None)
    if not times:
        return None, None, None
    middle = len(times) // 2
    median = times[middle] if len(times) % 2 else (times[middle - 1] + times[middle]) / 2
    p99 = times[min(len(times) - 1, int(0.99 * len(times)))] if len(times) >= MIN_P99 else None
    return median, p99, times[-1]


def figures_of(task: str, pairs: Sequence[Pair]) -> Figures:
    """Return the contract's figures of these pairs."""
    sums, out = _sum(pairs), Figures(task, requests=2 * len(pairs))
    out.gain = sums.token_plain_s / sums.time_s if sums.time_s > 0 else None
    if sums.rounds:
        out.a = 1 + sums.accepted / sums.rounds
        out.z = sums.zero / sums.rounds
    if sums.round_plain_s > 0:
        out.alpha = sums.draft_s / sums.round_plain_s
        out.beta = sums.verify_s / sums.round_plain_s - 1
        out.break_even = 1 + out.alpha + out.beta
    elif out.a is not None and out.gain:
        out.break_even = out.a / out.gain  # without costs only the sum α + β can be known
    out.tpot_p50_plain_ms, out.tpot_p99_plain_ms, out.tpot_max_plain_ms = _tpot_ms(p.plain for p in pairs)
    out.tpot_p50_spec_ms, out.tpot_p99_spec_ms, out.tpot_max_spec_ms = _tpot_ms(p.speculative for p in pairs)
    return out


def rows_of(outcome: Outcome, tasks: Iterable[str]) -> list[Row]:
    """Return one row per task, with the gateway's decision."""
    rows = []
    for task in tasks:
        pairs = [p for p in outcome.pairs if p.plain.task == task]
        row = _row(task, pairs)
        if decided := outcome.decisions.get(task):
            row.figures.path, row.figures.reason = decided.path, decided.reason
        rows.append(row)
    return rows


def _row(task: str, pairs: Sequence[Pair]) -> Row:
    sums = _sum(pairs)
    low, high = gain_interval(pairs)
    steps = sums.rounds + sums.undrafted
    levels = sorted({p.plain.concurrency for p in pairs})
    return Row(
        figures_of(task, pairs),
        low,
        high,
        drafted_share=sums.rounds / steps if steps else None,
        by_concurrency={c: gain([p for p in pairs if p.plain.concurrency == c]) for c in levels},
    )


def total_row(outcome: Outcome) -> Row:
    """Return all tasks together."""
    return _row("all", outcome.pairs)
