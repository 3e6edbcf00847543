"""An evaluation as a page: plots as inline SVG, no script, nothing loaded from elsewhere. Called by `evaluate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from cli.distill.judging import ALL, Report

WIDTH, HEIGHT, LEFT, BOTTOM = 620, 240, 44, 34
COLOURS = ("#2563eb", "#d97706", "#059669", "#dc2626", "#7c3aed", "#0891b2", "#be185d", "#4d7c0f", "#111827")
_STYLE = """
:root { color-scheme: light dark; --line: #8886; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: .5rem 0 1.5rem; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .7rem; border-bottom: 1px solid var(--line); text-align: right; }
th:first-child, td:first-child { text-align: left; }
svg { max-width: 100%; height: auto; } svg text { font-size: 11px; fill: currentColor; }
.grid { stroke: var(--line); } .even { stroke: currentColor; stroke-dasharray: 4 3; }
.key { display: inline-block; margin-right: 1rem; } .key i { display: inline-block; width: .8em; height: .8em; }
"""


def render(report: Report) -> str:
    """Return the whole page."""
    parts = [
        f"<h1>{escape(report.method)} draft for {escape(report.target)}</h1>",
        f"<p>{escape(report.draft)}; {escape(report.dtype)} on {escape(report.machine)}, {report.threads} thread(s). "
        f"SHA-256 {escape(report.draft_sha256 or '-')}, licence {escape(report.licence or 'not told')}. "
        f"Judged by {_answers(report)}.</p>",
    ]
    for temperature, tasks in report.acceptance[report.method].items():
        curves = {task: [row.a or 1.0 for row in rows] for task, rows in tasks.items()}
        ks = [str(row.k) for row in tasks[ALL]]
        parts += [f"<h2>Tokens per round by draft length, temperature {temperature}</h2>", _lines(curves, ks, 1.0)]
        parts.append(_acceptance_table(report, temperature))
        longest = {task: rows[-1].acceptance for task, rows in tasks.items()}
        positions = [str(at + 1) for at in range(tasks[ALL][-1].k)]
        parts += ["<h3>Acceptance by draft position, all before it accepted</h3>", _lines(longest, positions, None)]
    for batch, gains in report.expected_gain.get(report.method, {}).items():
        curves = {task: list(by_k.values()) for task, by_k in gains.items()}
        parts += [f"<h2>Expected gain at batch {batch}</h2>", _lines(curves, list(gains[ALL]), 1.0)]
    if report.measured:
        parts += [f"<h2>Timed gain at batch 1, k = {report.measured_k}</h2>", _gain_table(report)]
    if report.advice:
        parts += ["<h2>Recommended draft length</h2>", _advice_table(report)]
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>Draft of {escape(report.target)}</title><style>{_STYLE}</style>\n<body>{body}</body></html>\n"
    )


def _answers(report: Report) -> str:
    found = report.data["held-out"].items()
    return ", ".join(f"{one.answers} held-out answers at temperature {temperature}" for temperature, one in found)


def _lines(curves: Mapping[str, Sequence[float]], labels: Sequence[str], even: float | None) -> str:
    """A line chart: one curve a task over `labels`; `even` is marked as the break-even line."""
    values = [value for curve in curves.values() for value in curve]
    low = min([*values, even if even is not None else 0.0])
    high = max([*values, (even or 0.0) + 0.1])
    span = (high - low) or 1.0

    def at(index: int, value: float) -> tuple[float, float]:
        step = (WIDTH - LEFT - 10) / max(1, len(labels) - 1)
        return LEFT + index * step, HEIGHT - BOTTOM - (value - low) / span * (HEIGHT - BOTTOM - 10)

    shapes = []
    for tick in range(5):
        value = low + span * tick / 4
        y = at(0, value)[1]
        shapes.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - 10}" y1="{y:.1f}" y2="{y:.1f}"/>')
        shapes.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.2f}</text>')
    for index, label in enumerate(labels):
        shapes.append(
            f'<text x="{at(index, low)[0]:.1f}" y="{HEIGHT - 12}" text-anchor="middle">{escape(label)}</text>'
        )
    if even is not None:
        y = at(0, even)[1]
        shapes.append(f'<line class="even" x1="{LEFT}" x2="{WIDTH - 10}" y1="{y:.1f}" y2="{y:.1f}"/>')
    for colour, curve in zip(COLOURS, curves.values(), strict=False):
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(index, value) for index, value in enumerate(curve)))
        shapes.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
    keys = "".join(
        f'<span class="key"><i style="background:{colour}"></i> {escape(task)}</span>'
        for colour, task in zip(COLOURS, curves, strict=False)
    )
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{"".join(shapes)}</svg><p>{keys}</p>'


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{top}</tr>{body}</table>"


def _acceptance_table(report: Report, temperature: str) -> str:
    methods = list(report.acceptance)
    tasks = report.acceptance[report.method][temperature]
    rows = []
    for task, figures in tasks.items():
        at = next(index for index, row in enumerate(figures) if row.k == 4)
        cells = [report.acceptance[method][temperature][task][at] for method in methods]
        rows.append([task, *(f"{one.tokens_per_step:.2f}" for one in cells), f"{figures[at].z or 0:.2f}"])
    return _table(["tokens per step at k = 4", *methods, f"z ({report.method})"], rows)


def _gain_table(report: Report) -> str:
    methods = list(report.measured)
    rows = [
        [
            task,
            *(f"{one.gain:.2f} [{one.low:.2f}, {one.high:.2f}]" for one in (report.measured[m][task] for m in methods)),
        ]
        for task in report.measured[report.method]
    ]
    return _table(["task", *methods], rows)


def _advice_table(report: Report) -> str:
    rows = [
        [task, *(f"k = {one.k} ({one.expected_gain:.2f})" if one.k else "plain" for one in found)]
        for task, found in report.advice.items()
    ]
    batches = [f"batch {one.batch}" for one in report.advice[ALL]]
    return _table(["task", *batches], rows)
