"""Shows the demo's figures: the table that makes the point, and the JSON that scripts read. Called by `command`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from cli.demo.figures import Row
from cli.demo.runner import Outcome

_COLOUR = {"wins": "green", "loses": "red", "level": "yellow", "unknown": "dim"}
_DIGITS = 4


def to_json(outcome: Outcome, rows: Sequence[Row], total: Row) -> dict[str, Any]:
    """Return the object that `--json` prints: `tasks` holds exactly the contract's fields."""
    totals = _rounded(asdict(total.figures))
    for name in ("task", "path", "reason"):
        totals.pop(name)
    totals |= {
        "gain_low": _round(total.low),
        "gain_high": _round(total.high),
        "gain_by_concurrency": {str(c): _round(g) for c, g in total.by_concurrency.items()},
        "tokens": sum(p.plain.tokens + p.speculative.tokens for p in outcome.pairs),
        "seconds": round(outcome.seconds, 2),
        "model": outcome.model,
        "pairs_planned": outcome.planned,
        "pairs_run": len(outcome.pairs),
        "errors": outcome.errors,
        "taken_for_expected_task": _recognised(outcome),
        "wins": [r.figures.task for r in rows if r.verdict == "wins"],
        "loses": [r.figures.task for r in rows if r.verdict == "loses"],
    }
    return {"tasks": [_rounded(asdict(r.figures)) for r in rows], "totals": totals}


def _round(value: object) -> object:
    return round(value, _DIGITS) if isinstance(value, float) else value


def _rounded(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: _round(value) for name, value in fields.items()}


def _recognised(outcome: Outcome) -> float | None:
    """Share of the requests that the gateway took for the task their author meant."""
    samples = [s for p in outcome.pairs for s in (p.plain, p.speculative)]
    return round(sum(s.taken_for == s.task for s in samples) / len(samples), _DIGITS) if samples else None


def _number(value: float | None, form: str = ".2f") -> str:
    return "–" if value is None else format(value, form)


def _span(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f" [{low:.2f}–{high:.2f}]"


def _measured(rows: Sequence[Row], total: Row) -> Table:
    """Return the main table: what speculation did, task by task."""
    levels = sorted(total.by_concurrency)
    table = Table(title="What speculation did, on the same prompts on both paths", title_justify="left")
    table.add_column("task", no_wrap=True)
    for name in ("reqs", "a", "z", "α", "β", "1+α+β", "drafted"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("gain [95 %]", justify="right", no_wrap=True)
    for level in levels:
        table.add_column(f"at {level}", justify="right", no_wrap=True)
    table.add_column("TPOT p50 ms", justify="right", no_wrap=True)
    table.add_column("p99 (max) ms", justify="right", no_wrap=True)
    for row in [*rows, total]:
        if row is total:
            table.add_section()
        f = row.figures
        table.add_row(
            Text(f.task, style="bold"),
            str(f.requests),
            _number(f.a),
            _number(f.z, ".0%"),
            _number(f.alpha),
            _number(f.beta),
            _number(f.break_even),
            _number(row.drafted_share, ".0%"),
            Text(_number(f.gain) + "×" * (f.gain is not None) + _span(row.low, row.high), style=_COLOUR[row.verdict]),
            *(_number(row.by_concurrency.get(level)) for level in levels),
            f"{_number(f.tpot_p50_plain_ms, '.1f')} → {_number(f.tpot_p50_spec_ms, '.1f')}",
            f"{_tail(f.tpot_p99_plain_ms, f.tpot_max_plain_ms)} → {_tail(f.tpot_p99_spec_ms, f.tpot_max_spec_ms)}",
        )
    return table


def _tail(p99: float | None, largest: float | None) -> str:
    return f"({_number(largest, '.0f')})" if p99 is None else f"{p99:.0f} ({_number(largest, '.0f')})"


def _verdicts(rows: Sequence[Row]) -> list[Text]:
    """Return a sentence for the tasks that win, for those that lose and for those that nobody can tell apart yet."""
    said = {
        "wins": "Speculation pays on",
        "loses": "Speculation LOSES on",
        "level": "No clear difference yet on",
        "unknown": "Not measured on both paths:",
    }
    lines = []
    for verdict, opening in said.items():
        names = [_named(r) for r in rows if r.verdict == verdict]
        if names:
            lines.append(Text(f"{opening} {', '.join(names)}.", style=_COLOUR[verdict]))
    return lines


def _named(row: Row) -> str:
    """Return a task with its gain, where it has one."""
    return row.figures.task if row.figures.gain is None else f"{row.figures.task} ({row.figures.gain:.2f}×)"


def _failures(outcome: Outcome) -> list[Text]:
    """Return each failure once, with how often it happened."""
    counted = Counter(outcome.errors).most_common()
    lines = [Text(f"failed{f' {n} times' if n > 1 else ''}: {line}", style="red") for line, n in counted[:5]]
    if len(counted) > 5:
        lines.append(Text(f"… and {sum(n for _line, n in counted[5:])} more failures", style="red"))
    return lines


def _decisions(rows: Sequence[Row]) -> Table:
    """Return what the gateway itself does now."""
    table = Table(title="What the gateway itself decides now", title_justify="left")
    table.add_column("task", no_wrap=True, style="bold")
    table.add_column("path", no_wrap=True)
    table.add_column("reason")
    for row in rows:
        table.add_row(row.figures.task, row.figures.path or "–", row.figures.reason or "no request was answered")
    return table


def to_text(outcome: Outcome, rows: Sequence[Row], total: Row) -> RenderableType:
    """Return the whole report for a terminal."""
    notes = [
        "a: tokens emitted per round, the bonus token included; z: share of rounds that accepted nothing;",
        "drafted: share of steps that had a draft; gain: plain time / time taken (above 1 speculation is faster).",
        "p99 needs 299 requests.",
    ]
    if len(outcome.pairs) < outcome.planned:
        notes.append(
            f"Only {len(outcome.pairs)} of {outcome.planned} pairs were measured (the time was up, or requests failed)."
        )
    recognised = _recognised(outcome)
    if recognised is not None:
        notes.append(f"The gateway took {recognised:.0%} of the requests for the task that their author meant.")
    return Group(
        Text(f"Model {outcome.model}, {len(outcome.pairs)} pairs in {outcome.seconds:.0f} s", style="bold"),
        _measured(rows, total),
        *(Text(note, style="dim") for note in notes),
        *_verdicts(rows),
        *_failures(outcome),
        Text(),
        _decisions(rows),
    )


def print_text(outcome: Outcome, rows: Sequence[Row], total: Row) -> None:
    """Print the report; a pipe gets 140 columns so that no figure is cut."""
    console = Console()
    if not console.is_terminal or console.width < 100:
        console = Console(width=140)
    console.print(to_text(outcome, rows, total))
