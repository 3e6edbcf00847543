"""A report as a page, a live fragment, text, JSON, CSV or PDF. Called by `gateway/api/ops.py` and `cli/report.py`."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from typing import Protocol

import jinja2
import msgspec

from gateway.db import AuditSums
from gateway.ops import study_text
from gateway.ops.model import MIN_P99, ArmFigures, Report, Switched, TaskFigures
from gateway.ops.study_model import Gain
from gateway.ops.window import WINDOWS, window_name

DASH = "–"
ERROR_BUDGET = 0.005
"""As in the alerts: 99.5 % of the requests are to be answered."""
_OVERALL = {"win": "Speculation pays on all tasks together", "lose": "Speculation loses on all tasks together"}


@dataclass(frozen=True, slots=True)
class Bar:
    """The break-even bar, in per cent of its width."""

    fill: float
    mark: float
    verdict: str
    low: float | None = None
    high: float | None = None
    """Ends of the gain's interval on the scale of a, where there is one."""
    told: str = ""
    """The same in words."""


class Gained(Protocol):
    """A gain with its interval: a task's, an arm's or that against the holdout."""

    @property
    def gain(self) -> float | None:
        """Above 1 speculation is faster."""

    @property
    def gain_low(self) -> float | None:
        """The interval's lower end."""

    @property
    def gain_high(self) -> float | None:
        """The interval's upper end."""


@dataclass(frozen=True, slots=True)
class HoldoutGain:
    """The gain against the holdout."""

    gain: float | None
    gain_low: float | None
    gain_high: float | None


def holdout(task: TaskFigures) -> HoldoutGain:
    """Return a task's gain against the holdout."""
    return HoldoutGain(task.holdout_gain, task.holdout_low, task.holdout_high)


def verdict(task: Gained) -> str:
    """Return `win`, `lose`, `level` (an interval that holds 1, or none yet) or nothing where no gain is known."""
    if task.gain is None:
        return ""
    if task.gain_low is None or task.gain_high is None:
        return "level"
    return "win" if task.gain_low > 1 else "lose" if task.gain_high < 1 else "level"


def budget_left(report: Report) -> float | None:
    """Return the share of the error budget that is left, at least 0: 0.5 % of the requests may fail."""
    allowed = ERROR_BUDGET * report.totals.requests
    return max(0.0, 1 - report.totals.errors / allowed) if allowed else None


def band_name(load: int) -> str:
    """Return a load band as `1` or `4–7`."""
    return str(load) if load <= 1 else f"{load}–{2 * load - 1}"


def bar(task: TaskFigures | ArmFigures) -> Bar | None:
    """Return the break-even bar of a task or arm, None where a or the break-even length is unknown.

    How far a is from break-even is as uncertain as the gain: the interval is the gain's own, on the scale of a.
    """
    a, mark = task.a, task.break_even
    if a is None or mark is None:
        return None
    told = f"a is {number(a)}, break-even is {number(mark)}"
    low = high = None
    if task.gain and task.gain_low is not None and task.gain_high is not None:
        low, high = a * task.gain_low / task.gain, a * task.gain_high / task.gain
        told += f"; the gain's 95 % interval, on the scale of a: {number(low)} to {number(high)}"
    scale = 92 / max(a, mark, high or 0.0, 1e-9)
    first, last = (None if end is None else round(end * scale, 1) for end in (low, high))
    return Bar(round(a * scale, 1), round(mark * scale, 1), "win" if a > mark else "lose", first, last, told)


def headline(report: Report) -> str:
    """Return the one sentence that says whether speculation pays, and where."""
    wins = [t.task for t in report.tasks if verdict(t) == "win"]
    loses = [t.task for t in report.tasks if verdict(t) == "lose"]
    if not wins and not loses and (overall := _OVERALL.get(verdict(report.totals))):
        return f"{overall} ({times(report.totals.gain)}); no single task is certain yet"
    if not wins and not loses:
        return "Nothing measured yet says whether speculation pays" if report.tasks else "No traffic in this window"
    if not loses:
        return f"Speculation pays on {_listed(wins)}"
    if not wins:
        return f"Speculation loses on {_listed(loses)}"
    return f"Speculation pays on {_listed(wins)}, and loses on {_listed(loses)}"


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def number(value: float | None, digits: int = 2) -> str:
    """Return a figure, or a dash where it is unknown."""
    return DASH if value is None else f"{value:.{digits}f}"


def times(value: float | None) -> str:
    """Return a gain as `1.42×`."""
    return DASH if value is None else f"{value:.2f}×"


def percent(value: float | None) -> str:
    """Return a share in per cent."""
    return DASH if value is None else f"{value:.0%}"


def milliseconds(value: float | None) -> str:
    """Return milliseconds with the digits that matter."""
    return DASH if value is None else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def both(plain: float | None, spec: float | None) -> str:
    """Return milliseconds on the two paths, plain first."""
    return DASH if plain is None and spec is None else f"{milliseconds(plain)} → {milliseconds(spec)}"


def interval(task: Gained) -> str:
    """Return the gain's 95 % interval, or nothing."""
    if task.gain_low is None or task.gain_high is None:
        return ""
    return f"[{task.gain_low:.2f}–{task.gain_high:.2f}]"


def utc(at: float) -> str:
    """Return a Unix time as UTC, to the second."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def clock_time(at: float) -> str:
    """Return a Unix time as the hour and minute in UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S UTC")


@cache
def environment() -> jinja2.Environment:
    """Return the templates' environment, everything escaped."""
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader(
            [jinja2.PackageLoader("gateway.ops"), jinja2.PackageLoader("gateway.ops", "static")]
        ),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )
    environment.filters |= {
        "number": number,
        "times": times,
        "percent": percent,
        "both": both,
        "ms": milliseconds,
        "interval": interval,
        "holdout": holdout,
        "utc": utc,
        "window": window_name,
        "bar": bar,
        "verdict": verdict,
        "seconds": study_text.seconds,
        "budget": budget_left,
        "band": band_name,
    }
    return environment


@cache
def static_file(name: str) -> bytes:
    """Return a file of the page, as `vendor/uPlot.js`. Raises FileNotFoundError."""
    return resources.files("gateway.ops").joinpath("static", name).read_bytes()


def to_live(report: Report) -> str:
    """Return the part of the page that changes."""
    return environment().get_template("live.html").render(report=report, headline=headline(report))


def to_page(report: Report, *, standalone: bool = False, reports: bool = False) -> str:
    """Return the whole page; `standalone` has its style inside and no script, to keep or to send.

    `reports` is the page of reports: served like the live page, but without script.
    """
    drawings: list[tuple[str, str]] = []
    if report.study is not None:
        from gateway.ops import plots  # noqa: PLC0415  # takes a while to load, and the live page has none

        drawings = [(caption, plots.to_svg(drawing)) for caption, drawing in plots.plots(report.study)]
    return (
        environment()
        .get_template("ops.html")
        .render(
            report=report,
            headline=headline(report),
            standalone=standalone,
            study=report.study,
            here="reports" if reports else "live",
            drawings=drawings,
            windows=WINDOWS,
            since=window_name(report.since_s),
            min_p99=MIN_P99,
        )
    )


def to_json(report: Report) -> bytes:
    """Return the report as JSON; the field names are those of `breakeven demo --json`."""
    return msgspec.json.encode(report)


def to_csv(report: Report) -> str:
    """Return one line per task and one for all, then one per application with a study; unknown figures are empty."""
    out = io.StringIO()
    names = [field.name for field in msgspec.structs.fields(TaskFigures)]
    writer = csv.writer(out, lineterminator="\n")
    study = report.study
    writer.writerow([*names, *(study_text.CSV_COLUMNS if study else ())])
    gains: dict[str, Gain] = {gain.name: gain for gain in study.tasks} | {"all": study.total} if study else {}
    for task in [*report.tasks, report.totals]:
        more = study_text.csv_cells(study, gains.get(task.task)) if study else []
        writer.writerow([_cell(value) for value in [*(getattr(task, name) for name in names), *more]])
    for gain in study.applications if study else ():
        own: list[object] = [gain.name, *[None] * (len(names) - 1)]
        writer.writerow([_cell(value) for value in [*own, *(study_text.csv_cells(study, gain) if study else ())]])
    return out.getvalue()


def to_pdf(report: Report) -> bytes:
    """Return the report as a PDF with plots; it has a study."""
    from gateway.ops import pdf  # noqa: PLC0415  # as above

    period = f"Latest {window_name(report.since_s)} up to {utc(report.generated_at)}. {report.source}."
    return pdf.to_pdf(report, headline(report), period)


def _cell(value: object) -> object:
    """Return a CSV cell; text that a spreadsheet would run as a formula is quoted."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return f"'{value}"
    return "" if value is None else value


def to_text(report: Report) -> str:
    """Return a table for a terminal or a mail."""
    head = ("task", "requests", "a", "1+α+β", "gain", "z", "α", "β", "TPOT p50 ms", "p99 ms", "decision")
    rows = [head, *(_text_row(t) for t in [*report.tasks, report.totals])]
    widths = [max(len(row[at]) for row in rows) for at in range(len(head))]
    lines = [f"Breakeven, latest {window_name(report.since_s)} up to {utc(report.generated_at)}", headline(report), ""]
    for row in rows:
        cells = [
            cell.ljust(w) if at in (0, 10) else cell.rjust(w)
            for at, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    lines += ["", *(f"{t.task}: {t.reason}" for t in report.tasks if t.reason)]
    lines += ["", *(_switch_line(s) for s in report.switches)] if report.switches else []
    lines += ["", *map(_audit_line, report.audits)] if report.audits else []
    lines += ["", *study_text.lines(report.study), ""] if report.study else []
    bad = [f"{part.name}: {part.detail or 'not ok'}" for part in report.health if not part.ok]
    return "\n".join([*lines, *bad, f"p99 needs {MIN_P99} requests; {report.source}".rstrip("; ")]) + "\n"


def _audit_line(audit: AuditSums) -> str:
    """Return one line of the losslessness audits."""
    parts = [f"{audit.equal} equal", f"{audit.near_tie} parted at a near tie", f"{audit.different} different"]
    parts += [f"{audit.unexplained} parted without log-probabilities"] if audit.unexplained else []
    parts += [f"{audit.failed} failed"] if audit.failed else []
    return f"audit of {audit.arm}: {audit.audited} answers compared with plain, {', '.join(parts)}"


def _switch_line(switch: Switched) -> str:
    """Return one line of the switch log."""
    band = f" ({switch.band})" if switch.band else ""
    return f"{utc(switch.at)}  {switch.task}{band}: {switch.old_arm or 'nothing'} -> {switch.new_arm}: {switch.reason}"


def _text_row(t: TaskFigures) -> tuple[str, ...]:
    return (
        t.task,
        str(t.requests),
        number(t.a),
        number(t.break_even),
        f"{times(t.gain)} {interval(t)}".rstrip(),
        percent(t.z),
        number(t.alpha),
        number(t.beta),
        both(t.tpot_p50_plain_ms, t.tpot_p50_spec_ms),
        both(t.tpot_p99_plain_ms, t.tpot_p99_spec_ms),
        f"{t.path} {t.arm}".strip() or "no data",
    )
