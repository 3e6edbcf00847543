"""A report's study as lines of text and as rows of CSV. Called by `render`."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.ops.study_model import Gain, Saving, Study

CSV_COLUMNS = (
    "scope", "holdout_requests", "routed_requests", "holdout_gain", "holdout_gain_low", "holdout_gain_high",
    "time_saved_s", "time_saved_low_s", "time_saved_high_s", "accelerator_gain", "accelerator_gain_low",
    "accelerator_gain_high", "accelerator_saved_s", "accelerator_saved_low_s", "accelerator_saved_high_s",
    "wasted_accelerator_s", "estimator", "query",
)  # fmt: skip


def csv_cells(study: Study, gain: Gain | None) -> list[object]:
    """Return the study's columns of one line; empty where it says nothing of it."""
    if gain is None:
        return [None] * len(CSV_COLUMNS)
    wasted = {row.task: row.wasted_accelerator_s for row in study.waste}
    cells: list[object] = [gain.scope, gain.holdout, gain.requests]
    for saving in (gain.time, gain.accelerator):
        cells += [saving.gain, saving.low, saving.high, saving.saved_s, saving.saved_low_s, saving.saved_high_s]
    return [*cells, wasted.get(gain.name) if gain.scope == "task" else None, study.estimator, gain.query]


def seconds(value: float | None) -> str:
    """Return seconds with the digits that matter."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def saving(one: Saving) -> str:
    """Return `1.42x [1.30, 1.55], 120 s saved [90, 150]`."""
    if one.gain is None:
        return "unknown"
    saved = f"{seconds(one.saved_s)} s saved [{seconds(one.saved_low_s)}, {seconds(one.saved_high_s)}]"
    return f"{one.gain:.2f}x [{one.low:.2f}, {one.high:.2f}], {saved}"


def lines(study: Study) -> Iterator[str]:
    """Yield the study, section by section; each names its query."""
    yield f"Gain against the {study.estimator} (query sums)"
    for gain in (study.total, *study.tasks, *study.applications):
        yield f"  {gain.scope} {gain.name}: time {saving(gain.time)}; accelerator {saving(gain.accelerator)}"
        yield f"    {gain.requests} routed requests against {gain.holdout} kept plain. {gain.note}".rstrip()
    yield "Where it lost (query sums)"
    yield from [f"  {gain.scope} {gain.name}: {saving(gain.time)}" for gain in study.losses] or [
        "  nowhere for certain"
    ]
    yield "Draft work wasted (query sums)"
    for row in study.waste:
        share = "" if row.share is None else f", {row.share:.1%} of decode time"
        work = (
            f"{seconds(row.wasted_s)} request-seconds, {seconds(row.wasted_accelerator_s)} accelerator-seconds{share}"
        )
        yield f"  {row.task}: {row.rejected} of {row.drafted} draft tokens refused: {work}"
    yield "p99 on both paths, ms (query tails)"
    for tail in study.tails:
        plain = _bounded(tail.plain_ms, tail.plain_low_ms, tail.plain_high_ms)
        spec = _bounded(tail.spec_ms, tail.spec_low_ms, tail.spec_high_ms)
        yield f"  {tail.task} {tail.metric.upper()}: plain {plain}, speculative {spec}"
    yield f"Do full-miss rounds cause the spikes? (query {study.spikes.query})"
    yield f"  {study.spikes.text}"
    yield "Decisions changed (query switches)"
    yield from [f"  {c.task}: {c.count}, now {c.arm}: {c.reason}" for c in study.changes] or ["  none"]
    yield "What to do next"
    found = [f"  {advice.text}: {advice.because} (query {advice.query})" for advice in study.advice]
    yield from found or ["  nothing that these figures ask for"]
    yield f"Estimator: {study.estimator_note}"
    yield "The queries' text is in the JSON and HTML forms."


def _bounded(value: float | None, low: float | None, high: float | None) -> str:
    if value is None:
        return "–"
    bounds = "" if low is None or high is None else f" [{low:.1f}, {high:.1f}]"
    return f"{value:.1f}{bounds}"
