"""A report as page, fragment, text, JSON and CSV: every figure is there, nothing is run, unknown is a dash."""

from __future__ import annotations

import csv
import io
import json
import re
from html.parser import HTMLParser

import pytest

from gateway.ops import render
from gateway.ops.model import Health, Report, Switched, TaskFigures

STRUCTURED = TaskFigures(
    "structured",
    requests=96,
    requests_plain=48,
    requests_spec=48,
    a=2.914,
    z=0.213,
    alpha=0.011,
    beta=0.204,
    break_even=1.215,
    gain=2.104,
    gain_low=1.9,
    gain_high=2.3,
    tpot_p50_plain_ms=38.14,
    tpot_p50_spec_ms=17.93,
    path="speculative",
    arm="engine/ngram-k4",
    reason="speculative engine/ngram-k4: a 2.91 > 1 + 0.01 + 0.20",
)
CREATIVE = TaskFigures(
    "creative", requests=4, a=1.1, break_even=1.3, gain=0.9, gain_low=0.85, gain_high=0.95, path="plain"
)
THIN = TaskFigures("math", requests=5, gain=1.4)
CHAT = TaskFigures("chat", requests=1, gain=1.02, gain_low=0.9, gain_high=1.1)
NASTY = TaskFigures("<script>alert(1)</script>", reason='=HYPERLINK("x")"><img src=x onerror=alert(1)>')


def report(*tasks, **more):
    return Report(1_796_000_000.0, 3600.0, list(tasks), TaskFigures("all", requests=101), **more)


class Text(HTMLParser):
    """All text of a page, and every attribute."""

    def __init__(self, page):
        super().__init__()
        self.text, self.attributes, self.tags = [], [], []
        self.feed(page)

    def handle_data(self, data):
        self.text.append(data)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs


def test_page_shows_every_figure_and_the_decision():
    page = Text(render.to_page(report(STRUCTURED, CREATIVE, CHAT)))
    text = " ".join(" ".join(page.text).split())
    for shown in ("2.91", "1.22", "2.10×", "[1.90–2.30]", "21%", "0.01", "0.20", "38.1 → 17.9", "engine/ngram-k4"):
        assert shown in text
    assert "Speculation pays on structured, and loses on creative" in text
    assert STRUCTURED.reason in text
    assert "No decision has been made for this task yet." in text


def test_page_asks_for_nothing_from_elsewhere_and_has_no_inline_script_or_style():
    page = Text(render.to_page(report(STRUCTURED)))
    addresses = [value for name, value in page.attributes if name in ("href", "src", "data-events")]
    assert all(address.startswith(("/ops", "#")) for address in addresses)
    assert not [name for name, _value in page.attributes if name == "style" or name.startswith("on")]
    assert "style" not in page.tags


def test_standalone_page_has_its_style_inside_and_no_script():
    page = Text(render.to_page(report(STRUCTURED), standalone=True))
    assert "script" not in page.tags
    assert [value for name, value in page.attributes if name == "href"] == ["data:,", "#tasks"]
    assert any("--ground" in part for part in page.text)


def test_names_from_outside_are_text_only():
    hostile = report(NASTY, health=[Health("<b>redis</b>", ok=False, detail="<i>gone</i>")])
    page = render.to_page(hostile)
    assert "<script>alert" not in page
    assert "<img" not in page
    assert "<b>redis" not in page
    cells = list(csv.reader(io.StringIO(render.to_csv(hostile))))
    assert cells[1][-1].startswith("'=HYPERLINK")


def test_empty_report_says_what_to_do():
    page = render.to_page(report())
    assert "make demo" in page
    assert "No traffic in this window" in page


def test_headline_falls_back_to_all_tasks_together():
    together = report(THIN)
    together.totals = TaskFigures("all", gain=1.35, gain_low=1.1, gain_high=1.6)
    assert render.headline(together) == "Speculation pays on all tasks together (1.35×); no single task is certain yet"
    assert render.headline(report(THIN)) == "Nothing measured yet says whether speculation pays"


def test_bar_marks_break_even_and_takes_a_side():
    wins, loses = render.bar(STRUCTURED), render.bar(CREATIVE)
    assert wins.verdict == "win"
    assert wins.low < wins.fill < wins.high <= 100
    assert wins.mark < wins.low
    assert "break-even is" in wins.told
    assert "the gain's 95 % interval, on the scale of a" in wins.told
    assert loses.verdict == "lose"
    assert loses.fill < loses.mark <= 100
    assert render.bar(CHAT) is None


@pytest.mark.parametrize(
    ("task", "side"), [(STRUCTURED, "win"), (CREATIVE, "lose"), (CHAT, "level"), (THIN, "level"), (NASTY, "")]
)
def test_verdict_needs_the_interval_on_one_side(task, side):
    assert render.verdict(task) == side


def test_json_has_the_demos_names_and_nulls():
    got = json.loads(render.to_json(report(CHAT)))
    row = got["tasks"][0]
    assert row["task"] == "chat"
    assert row["a"] is None
    for name in ("z", "alpha", "beta", "break_even", "gain", "tpot_p50_plain_ms", "tpot_p99_spec_ms", "path", "reason"):
        assert name in row
    assert got["totals"]["requests"] == 101


def test_csv_has_a_line_per_task_and_one_for_all():
    rows = list(csv.DictReader(io.StringIO(render.to_csv(report(STRUCTURED, CHAT)))))
    assert [row["task"] for row in rows] == ["structured", "chat", "all"]
    assert rows[0]["gain"] == "2.104"
    assert rows[1]["a"] == ""


def test_text_lines_up_and_names_what_is_wrong():
    switch = Switched(1_796_000_000.0, "creative", "load 4", "engine/ngram-k4", "engine/plain", "a 1.1 < 1.3")
    text = render.to_text(
        report(STRUCTURED, CREATIVE, health=[Health("redis", ok=False, detail="frozen")], switches=[switch])
    )
    assert "redis: frozen" in text
    assert "engine/ngram-k4 -> engine/plain: a 1.1 < 1.3" in text
    head = next(line for line in text.splitlines() if line.startswith("task "))
    row = next(line for line in text.splitlines() if line.startswith("structured "))
    assert row.index("speculative engine/ngram-k4") == head.index("decision")


def test_switch_log_on_the_page():
    switch = Switched(1_796_000_000.0, "creative", "", "engine/ngram-k4", "engine/plain", "a 1.1 < 1.3")
    page = " ".join(Text(render.to_page(report(CREATIVE, switches=[switch]))).text)
    assert re.search(r"creative\s*:\s+engine/ngram-k4\s+→\s+engine/plain\s+a 1.1 < 1.3", page)


def test_a_long_switch_log_is_folded():
    switches = [Switched(1_796_000_000.0, f"task{n}", "", "", "engine/plain", "x") for n in range(11)]
    page = Text(render.to_page(report(CREATIVE, switches=switches)))
    assert page.tags.count("details") == 1
    assert page.tags.count("li") >= 11
    assert "3 older changes" in page.text
    assert "details" not in Text(render.to_page(report(CREATIVE, switches=switches[:8]))).tags
