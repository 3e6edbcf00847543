"""A report's plots, drawn by ReportLab: the same drawing as SVG for the page and as vectors in the PDF.

Called by `render` and `pdf`. Colours are told apart without colour vision too: each plot's figures stand in its table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reportlab.graphics import renderSVG
from reportlab.graphics.charts.barcharts import HorizontalBarChart
from reportlab.graphics.charts.lineplots import LinePlot
from reportlab.graphics.shapes import Drawing, String
from reportlab.graphics.widgets.markers import makeMarker
from reportlab.lib.colors import HexColor

from gateway.ops.study_model import Gain, SpikePoint, Study, TailRow

WIDTH = 480
"""Points."""
_WIN, _LOSE, _LEVEL, _INK = (HexColor(code) for code in ("#12684f", "#b3261e", "#7a5b00", "#1b211f"))
_PLAIN, _SPEC = HexColor("#8a938f"), HexColor("#12684f")
_LEFT = 110


def plots(study: Study) -> list[tuple[str, Drawing]]:
    """Return (caption, drawing) of every plot that there are figures for."""
    found: list[tuple[str, Drawing]] = []
    shown = [gain for gain in (study.total, *study.tasks, *study.applications) if gain.time.gain is not None][:24]
    if shown:
        found.append(("Gain in time against the randomised holdout, 95 % interval; 1 is plain decoding", forest(shown)))
    rows = [row for row in study.tails if row.metric == "tpot" and None not in (row.plain_ms, row.spec_ms)]
    if rows:
        found.append(("p99 TPOT, ms: plain (grey) and speculative (green)", bars(rows)))
    if len(study.spikes.points) > 1:
        caption = (
            "Zero-accept rate (across) against p99 TPOT over that of plain decoding (up); a point per arm and load"
        )
        found.append((caption, scatter(study.spikes.points)))
    return found


def to_svg(drawing: Drawing) -> str:
    """Return an <svg> element to stand in a page."""
    text = str(renderSVG.drawToString(drawing))
    return text[text.index("<svg") :]


def forest(gains: Sequence[Gain]) -> Drawing:
    """Draw each gain with its interval, one line each, the first on top."""
    names = [gain.name[:22] for gain in reversed(gains)]
    height = 18 * len(gains)
    drawing = Drawing(WIDTH, height + 45)
    plot = _plot(drawing, height)
    lines: list[list[tuple[float, int]]] = [[(1.0, 0), (1.0, len(gains) + 1)]]
    for at, gain in enumerate(reversed(gains), 1):
        low, middle, high = (value or 1.0 for value in (gain.time.low, gain.time.gain, gain.time.high))
        lines.append([(low, at), (middle, at), (high, at)])
    plot.data = lines
    plot.lines[0].strokeColor, plot.lines[0].strokeDashArray = _INK, (3, 2)
    for at, gain in enumerate(reversed(gains), 1):
        colour = _colour(gain)
        plot.lines[at].strokeColor, plot.lines[at].strokeWidth = colour, 2
        plot.lines[at].symbol = makeMarker("FilledCircle", size=5, fillColor=colour, strokeColor=colour)
    plot.yValueAxis.valueMin, plot.yValueAxis.valueMax = 0, len(gains) + 1
    plot.yValueAxis.valueSteps = list(range(1, len(gains) + 1))
    plot.yValueAxis.labelTextFormat = lambda value: names[round(value) - 1]
    values = [x for line in lines for x, _ in line]
    _range(plot.xValueAxis, min(values), max(values))
    return drawing


def bars(rows: Sequence[TailRow]) -> Drawing:
    """Draw both paths' p99 of each task."""
    height = 26 * len(rows)
    drawing = Drawing(WIDTH, height + 45)
    chart = HorizontalBarChart()
    chart.x, chart.y, chart.width, chart.height = _LEFT, 30, WIDTH - _LEFT - 20, height
    rows = list(reversed(rows))
    chart.data = [[row.spec_ms for row in rows], [row.plain_ms for row in rows]]
    chart.categoryAxis.categoryNames = [row.task[:22] for row in rows]
    chart.bars[0].fillColor, chart.bars[1].fillColor = _SPEC, _PLAIN
    chart.bars.strokeColor = None
    chart.valueAxis.valueMin = 0
    chart.valueAxis.valueMax = 1.08 * max(max(row.spec_ms or 0.0, row.plain_ms or 0.0) for row in rows)
    drawing.add(chart)
    return drawing


def scatter(points: Sequence[SpikePoint]) -> Drawing:
    """Draw one mark for each arm and load."""
    drawing = Drawing(WIDTH, 245)
    plot = _plot(drawing, 200)
    plot.data = [[(100 * point.z, point.ratio)] for point in points]
    for at in range(len(points)):
        plot.lines[at].symbol = makeMarker("FilledCircle", size=6, fillColor=_SPEC, strokeColor=_INK)
    _range(plot.xValueAxis, 0, 100 * max(point.z for point in points))
    _range(plot.yValueAxis, min(1.0, *(p.ratio for p in points)), max(1.0, *(p.ratio for p in points)))
    plot.xValueAxis.labelTextFormat = "%0.0f %%"
    drawing.add(String(_LEFT, 4, "zero-accept rate", fontSize=8))
    return drawing


def _plot(drawing: Drawing, height: int) -> Any:  # noqa: ANN401  # ReportLab builds its widgets' attributes at run time
    plot = LinePlot()
    plot.x, plot.y, plot.width, plot.height = _LEFT, 30, WIDTH - _LEFT - 20, height
    plot.joinedLines = 1
    drawing.add(plot)
    return plot


def _range(axis: Any, low: float, high: float) -> None:  # noqa: ANN401  # as above
    pad = 0.08 * (high - low) or 0.1
    axis.valueMin, axis.valueMax = low - pad, high + pad
    axis.labelTextFormat = "%0.2f"
    axis.maximumTicks, axis.visibleGrid, axis.gridStrokeColor = 6, 1, HexColor("#e6eae8")


def _colour(gain: Gain) -> HexColor:
    if gain.time.low is not None and gain.time.low > 1:
        return _WIN
    return _LOSE if gain.time.high is not None and gain.time.high < 1 else _LEVEL
