"""`/ops` in a real browser: what it shows is what was sent, live, in the dark, on a phone and without a mouse."""

from __future__ import annotations

import itertools
import json
import re
import time
import urllib.request
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect

from tests.e2e.live import until_live
from tests.fixtures.servers import wait_until

SENT = {"code": {"plain": 3, "speculative": 2}, "translation": {"plain": 1}, "creative": {"speculative": 4}}

CONTRAST = """() => {
  const luminance = (colour) => {
    const [r, g, b] = colour.match(/[\\d.]+/g).slice(0, 3).map(Number)
      .map((v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (element) => {
    for (let box = element; box; box = box.parentElement) {
      const colour = getComputedStyle(box).backgroundColor;
      if (!/, 0\\)$/.test(colour)) return colour;
    }
  };
  const texts = [...document.querySelectorAll("h1, h2, th, td, small, code, dd, a:not(.skip), .pill, .live")];
  const ratios = texts.map((element) => {
    const [a, b] = [luminance(getComputedStyle(element).color), luminance(ground(element))];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  });
  return [luminance(ground(document.body)), Math.min(...ratios)];
}"""
"""The page's ground (0 black, 1 white), and the worst contrast of its texts (WCAG 2 asks for 4.5)."""


def post(served, task, path):
    """One short request on a declared task and a forced path."""
    model = json.load(urllib.request.urlopen(f"{served.url}/v1/models", timeout=60))["data"][0]["id"]
    body = {"model": model, "messages": [{"role": "user", "content": f"{task} a b a b a b"}], "max_tokens": 16}
    request = urllib.request.Request(
        f"{served.url}/v1/chat/completions",
        data=json.dumps(body).encode(),
        headers={"content-type": "application/json", "x-breakeven-task": task, "x-breakeven-path": path},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.headers["x-breakeven-path"] == path


WINDOWS = itertools.count(3600)
"""Seconds: one more for each report, because one that took long to make is kept for up to a minute."""


def report(served):
    """The report of the last hour as it is now."""
    with urllib.request.urlopen(f"{served.url}/ops/report.json?since={next(WINDOWS)}s", timeout=60) as answer:
        return json.load(answer)


def counts(served):
    """Requests by task, plain and speculative, as the report has them now."""
    tasks = report(served)["tasks"]
    return {row["task"]: (row["requests_plain"], row["requests_spec"]) for row in tasks}


def recorded(served):
    """Whether every request so far is in the stores."""
    with urllib.request.urlopen(f"{served.url}/readyz", timeout=60) as answer:
        recorder = json.load(answer)["stores"]["recorder"]
    return recorder["queued"] == 0 and all(sink["pending"] == 0 for sink in recorder["sinks"])


@pytest.fixture(scope="module")
def sent(served):
    """Send the mix; return how many requests each task then has, once they are recorded."""
    wait_until(lambda: recorded(served))  # what other tests have sent
    before = counts(served)
    expected = dict(before)
    for task, paths in SENT.items():
        plain, spec = before.get(task, (0, 0))
        expected[task] = (plain + paths.get("plain", 0), spec + paths.get("speculative", 0))
        for path, times in paths.items():
            for _ in range(times):
                post(served, task, path)
    deadline = time.monotonic() + 120
    while (found := counts(served)) != expected:
        assert time.monotonic() < deadline, f"{found} instead of {expected}"
        time.sleep(0.2)
    return {task: sum(both) for task, both in expected.items()}


class Watched:
    """A page that notes everything a page should not do."""

    def __init__(self, chromium, served, **options):
        self.context = chromium.new_context(**options)
        self.context.set_default_timeout(120_000)
        self.page = self.context.new_page()
        self.trouble = []
        host = urlsplit(served.url).netloc
        self.page.on("console", lambda m: m.type in ("error", "warning") and self.trouble.append(f"console: {m.text}"))
        self.page.on("pageerror", lambda e: self.trouble.append(f"error: {e}"))
        self.page.on("requestfailed", self.failed)
        self.page.on("response", lambda r: r.status >= 400 and self.trouble.append(f"{r.status}: {r.url}"))
        self.page.on(
            "request", lambda r: urlsplit(r.url).netloc != host and self.trouble.append(f"another host: {r.url}")
        )
        self.page.goto(f"{served.url}/ops", wait_until="load")

    def failed(self, request):
        # Leaving the page ends the event stream: that is no failure.
        if not request.url.split("?")[0].endswith("/ops/events"):
            self.trouble.append(f"failed: {request.url}")

    def close(self):
        self.context.close()
        assert self.trouble == []


@pytest.fixture
def watch(chromium, served, sent):
    opened = []

    def open_page(**options):
        opened.append(Watched(chromium, served, **options))
        return opened[-1].page

    yield open_page
    for watched in opened:
        watched.close()


def field(page, task, name):
    return page.locator(f'[data-task="{task}"] [data-field="{name}"]').inner_text()


def test_it_shows_what_was_sent_and_what_was_decided(watch, served, sent, tmp_path):
    page = watch(viewport={"width": 1440, "height": 1000})
    for task, requests in sent.items():
        assert field(page, task, "requests") == str(requests)
        assert field(page, task, "path") in ("speculative", "plain", "no data")
    assert int(page.locator("#total-requests").inner_text()) == sum(sent.values())
    a = field(page, "creative", "a")
    row = next(t for t in report(served)["tasks"] if t["task"] == "creative")
    assert a == ("–" if row["a"] is None else f"{row['a']:.2f}")
    parts = {item.get_attribute("data-health") for item in page.locator("[data-health]").all()}
    assert {"redis", "database", "backend engine"} <= parts
    expect(page.locator("[data-health]:not(.ok)")).to_have_count(0, timeout=90_000)  # a store may miss its time once
    page.screenshot(path=tmp_path / "ops.png", full_page=True)
    assert (tmp_path / "ops.png").stat().st_size > 20_000


def test_charts_show_what_was_sent_and_say_it_as_tables(watch, sent):
    page = watch(viewport={"width": 1280, "height": 900})
    expect(page.locator("#charts")).to_have_attribute("data-drawn", re.compile("^[1-9]"), timeout=30_000)
    charts = {figure.get_attribute("data-chart") for figure in page.locator("#charts figure").all()}
    assert charts == {"requests", "tokens", "tpot", "ttft", "a", "z"}
    assert page.locator("#charts canvas").count() == 6
    page.locator('[data-chart="requests"] summary').click()
    cells = page.locator('[data-chart="requests"] details tbody td').all_inner_texts()
    per_second = sum(float(cell) for cell in cells if cell != "–")
    assert 60 * per_second == pytest.approx(sum(sent.values()), rel=0.02)


def test_the_other_pages_and_their_way_back(watch, served, sent):
    page = watch(viewport={"width": 360, "height": 740}, is_mobile=True)
    for name, heading in (("reports", "What speculation gained"), ("policies", "Policy versions"), ("keys", "Keys")):
        page.get_by_role("navigation", name="Pages").get_by_role("link", name=name, exact=True).click()
        page.wait_for_url(f"**/ops/{name}*")
        assert heading in page.inner_text("body")
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.goto(f"{served.url}/ops/requests")
    first = page.locator("tbody th a").first
    wanted = first.inner_text()
    first.focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/ops/requests?id=*")
    assert page.locator("[data-request]").get_attribute("data-request") == wanted
    assert page.locator('[data-field="status"]').inner_text() == "200"
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_it_is_live(watch, served):
    page = watch()
    until_live(page)
    before = int(field(page, "translation", "requests"))
    post(served, "translation", "plain")
    count = page.locator("[data-task=translation] [data-field=requests]")
    expect(count).to_have_text(str(before + 1), timeout=120_000)  # a report that took long is kept for a minute
    assert int(page.evaluate("document.body.dataset.updates")) >= 1


def test_a_phone_shows_it_without_scrolling_sideways(watch, sent):
    page = watch(viewport={"width": 360, "height": 740}, device_scale_factor=2, is_mobile=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert field(page, "code", "requests") == str(sent["code"])


def test_dark_and_light_differ_and_both_can_be_read(watch):
    dark = watch(color_scheme="dark").evaluate(CONTRAST)
    light = watch(color_scheme="light").evaluate(CONTRAST)
    assert dark[0] < 0.05
    assert light[0] > 0.8
    assert dark[1] >= 4.5
    assert light[1] >= 4.5


def test_everything_can_be_reached_by_keyboard_and_is_named(watch):
    page = watch()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.textContent.trim()"))
    assert {"15m", "1h", "7d", "90d", "reports", "requests", "policies", "keys", "JSON", "CSV", "PDF"} <= reached
    assert page.locator("h1").count() == 1
    for table in page.locator("table:not(.u-legend)").all():
        named = table.get_attribute("aria-labelledby") or table.get_attribute("aria-label")
        assert table.locator("caption").count() or named
        columns = table.locator("tbody tr").first.locator("th, td").count()
        assert table.locator("thead th[scope=col]").count() == columns
    unnamed = page.locator("svg:not([aria-label])").count() + page.locator("section:not([aria-labelledby])").count()
    assert unnamed == 0


def test_a_window_is_kept_in_the_address(watch, served):
    page = watch()
    page.get_by_role("link", name="7d", exact=True).click()
    page.wait_for_url("**/ops?since=7d")
    assert page.locator("nav[aria-label=Window] a[aria-current=page]").inner_text() == "7d"
    assert "latest 7d" in page.locator("caption").inner_text()


def test_without_javascript_the_page_says_the_same(watch, sent):
    page = watch(java_script_enabled=False)
    assert field(page, "code", "requests") == str(sent["code"])
