"""A report as PDF, for a meeting: figures with intervals, plots as vectors, and the queries. Called by `render`.

Set in the fonts that every PDF reader has, which know Latin letters only: Greek symbols are written out, and what they
lack is shown as a question mark.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from xml.sax.saxutils import escape

from reportlab.lib.colors import HexColor
from reportlab.lib.pagesizes import A4
from reportlab.lib.styles import getSampleStyleSheet
from reportlab.lib.units import mm
from reportlab.platypus import Flowable, PageBreak, Paragraph, SimpleDocTemplate, Spacer, Table, TableStyle

from gateway.ops.model import Report
from gateway.ops.plots import plots
from gateway.ops.study_model import Gain, Saving, Study
from gateway.ops.study_text import seconds

_WORDS = {"α": "alpha", "β": "beta", "→": "->", "≥": ">=", "≤": "<=", "Σ": "sum"}
_LINE, _HEAD = HexColor("#d9dedb"), HexColor("#1f6f5c")
_STYLES = getSampleStyleSheet()
Cells = Sequence[object]


def to_pdf(report: Report, headline: str, period: str) -> bytes:
    """Return the document; `report` has a study."""
    study = report.study
    if study is None:
        raise ValueError("a PDF needs a report with a study")
    story: list[Flowable] = [_text("Breakeven report", "Title"), _text(period, "Normal"), _text(headline, "Heading3")]
    story += _gains(study)
    for caption, drawing in plots(study):
        story += [Spacer(1, 4 * mm), _text(caption, "Italic"), drawing]
    story += [*_losses(study), *_waste(study), *_tails(study), *_closing(study), PageBreak()]
    story.append(_text("The queries", "Heading2"))
    for query in study.queries:
        story += [_anchor(f"{query.id}: {query.about}", query.id), _text(query.sql, "Code")]
    out = io.BytesIO()
    document = SimpleDocTemplate(
        out, pagesize=A4, title="Breakeven report", author="Breakeven", subject=period,
        leftMargin=15 * mm, rightMargin=15 * mm, topMargin=15 * mm, bottomMargin=15 * mm,
    )  # fmt: skip
    document.build(story)
    return out.getvalue()


def latin(text: str) -> str:
    """Return the text as the standard fonts can show it."""
    for symbol, word in _WORDS.items():
        text = text.replace(symbol, word)
    return text.encode("cp1252", "replace").decode("cp1252")


def _text(text: str, style: str) -> Paragraph:
    shown = escape(latin(text))
    return Paragraph(shown.replace("\n", "<br/>"), _STYLES[style])


def _anchor(text: str, name: str) -> Paragraph:
    return Paragraph(f'<a name="query-{name}"/>{escape(latin(text))}', _STYLES["Heading4"])


def _title(text: str, *queries: str) -> Paragraph:
    links = ", ".join(f'<a href="#query-{name}" color="#1f6f5c">query {name}</a>' for name in queries)
    return Paragraph(f"{escape(latin(text))} <font size=8>({links})</font>", _STYLES["Heading2"])


def _table(head: Cells, rows: Sequence[Cells]) -> Table:
    body = _STYLES["Normal"].clone("cell", fontSize=7, leading=8.5)
    cells = [[Paragraph(escape(latin(str(cell))), body) for cell in row] for row in (head, *rows)]
    table = Table(cells, repeatRows=1)
    table.setStyle(
        TableStyle(
            [
                ("LINEBELOW", (0, 0), (-1, -1), 0.4, _LINE),
                ("LINEBELOW", (0, 0), (-1, 0), 1, _HEAD),
                ("VALIGN", (0, 0), (-1, -1), "TOP"),
            ]
        )
    )
    return table


def _saving(one: Saving) -> tuple[str, str]:
    if one.gain is None:
        return "unknown", "unknown"
    saved = f"{seconds(one.saved_s)} [{seconds(one.saved_low_s)}, {seconds(one.saved_high_s)}]"
    return f"{one.gain:.2f}x [{one.low:.2f}, {one.high:.2f}]", saved


def _gains(study: Study) -> list[Flowable]:
    head = ("", "requests", "held plain", "gain in time", "seconds saved", "gain, accelerator", "accelerator-s saved")
    shown: list[Gain] = [study.total, *study.tasks, *study.applications]
    rows = [(g.name, g.requests, g.holdout, *_saving(g.time), *_saving(g.accelerator)) for g in shown]
    notes = [_text(f"{gain.name}: {gain.note}", "Normal") for gain in shown if gain.note]
    title = _title("What speculation gained, against the randomised holdout", "sums")
    estimator = f"Estimator: {study.estimator}. {study.estimator_note}"
    return [title, _table(head, rows), *notes, _text(estimator, "Normal")]


def _losses(study: Study) -> list[Flowable]:
    lines = [f"{gain.scope} {gain.name}: {', '.join(_saving(gain.time))} s" for gain in study.losses]
    return [_title("Where it lost", "sums"), *(_text(x, "Normal") for x in lines or ["Nowhere for certain."])]


def _waste(study: Study) -> list[Flowable]:
    head = ("task", "draft tokens", "refused", "request-seconds", "accelerator-seconds", "share of decode time")
    rows = [
        (w.task, w.drafted, w.rejected, seconds(w.wasted_s), seconds(w.wasted_accelerator_s),
         "–" if w.share is None else f"{w.share:.1%}")
        for w in study.waste
    ]  # fmt: skip
    return [_title("Draft work wasted", "sums"), _table(head, rows)]


def _tails(study: Study) -> list[Flowable]:
    rows = [
        (t.task, t.metric.upper(), *(_ms(x) for x in (t.plain_ms, t.plain_low_ms, t.plain_high_ms)),
         *(_ms(x) for x in (t.spec_ms, t.spec_low_ms, t.spec_high_ms)))
        for t in study.tails
    ]  # fmt: skip
    head = ("task", "latency", "plain p99, ms", "from", "to", "speculative p99, ms", "from", "to")
    asked = _title("Do full-miss rounds cause the spikes?", "sums", "tails")
    return [_title("p99 on both paths", "tails"), _table(head, rows), asked, _text(study.spikes.text, "Normal")]


def _closing(study: Study) -> list[Flowable]:
    changed = [f"{c.task}: {c.count}, now {c.arm}: {c.reason}" for c in study.changes] or ["None."]
    advice = [f"{a.text}: {a.because} (query {a.query})" for a in study.advice] or [
        "Nothing that these figures ask for."
    ]
    story: list[Flowable] = [_title("Decisions changed", "switches"), *(_text(line, "Normal") for line in changed)]
    return [*story, _text("What to do next", "Heading2"), *(_text(line, "Normal") for line in advice)]


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"
