"""The pages beside the live one: a request by its id, policies put back by our own form only, keys, and the charts."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta

import pytest

from gateway.db import Database, StoredText
from gateway.ops.series import series_of, step_minutes
from tests.fixtures.records import make_record
from tests.fixtures.servers import policy_text


@pytest.fixture
async def served(tmp_path, upstream, start_gateway):
    """A running gateway over a database with a few requests, one of them with its text."""
    url = f"sqlite:///{tmp_path}/pages.db"
    database = Database(url)
    await database.migrate()
    await database.insert_records([make_record("r-1"), make_record("r-2", task="<b>odd</b>")])
    now = datetime.now(UTC)
    text = StoredText(
        "r-1", now, now + timedelta(days=1), "chat", "m", "anonymous", "", "code", "keep", "p", 200,
        '[{"content": "say <i>hi</i>"}]', '[{"content": "hi"}]', False,
    )  # fmt: skip
    await database.insert_texts([text])
    yield start_gateway(policy_text(("pool", "openai", upstream.url)), env={"BREAKEVEN_DATABASE_URL": url})
    await database.aclose()


def get(gateway, path, **headers):
    import httpx

    return httpx.get(f"{gateway.url}{path}", headers=headers, timeout=60)


def post(gateway, form, **headers):
    import httpx

    return httpx.post(f"{gateway.url}/ops/policies/rollback", data=form, headers=headers, timeout=60)


async def test_text_past_its_time_is_not_shown_and_any_id_may_be_asked_for(database_url):
    database = Database(database_url)
    await database.migrate()
    await database.insert_records([make_record("r-1")])
    gone = datetime.now(UTC) - timedelta(seconds=1)
    text = StoredText(
        "r-1", gone, gone, "chat", "m", "anonymous", "", "code", "keep", "p", 200, '"old"', '"old"', False
    )  # fmt: skip
    await database.insert_texts([text])
    found = await database.request("r-1")
    assert found is not None
    assert found.text is None
    assert await database.request("r\0\ud800") is None
    assert await database.policy_text("\0") is None
    await database.aclose()


def test_the_pages(served):
    one = get(served, "/ops/requests?id=r-1").text
    assert 'data-request="r-1"' in one
    assert "speculative engine/ngram-k4: no data" in one
    assert "say &lt;i&gt;hi&lt;/i&gt;" in one
    other = get(served, "/ops/requests?id=r-2").text
    assert "&lt;b&gt;odd" in other
    assert "No rule keeps the text" in other
    assert "No request <code>r-3</code> is kept" in get(served, "/ops/requests?id=r-3").text
    assert 'href="/ops/requests?id=r-2"' in get(served, "/ops/requests").text
    assert "No key exists" in get(served, "/ops/keys").text
    charts = get(served, "/ops/series.json?since=1h").json()
    requests = next(chart for chart in charts["charts"] if chart["id"] == "requests")
    speculative = next(line for line in requests["lines"] if line["label"] == "speculative")
    assert sum(speculative["values"]) * charts["step_s"] == pytest.approx(2)
    assert get(served, "/ops/series.json?since=soon").status_code == 400
    _rolls_back_only_by_our_own_form(served)


def _rolls_back_only_by_our_own_form(served):
    import httpx

    page = get(served, "/ops/policies").text
    first = re.search(r'data-field="in-force">([0-9a-f]+)<', page)[1]
    text = get(served, "/v1/policy").json()["text"].replace("probe: 0%", "probe: 3%")
    made = httpx.put(
        f"{served.url}/v1/policy", json={"text": text, "reason": "try"}, headers={"if-match": "*"}, timeout=60
    )
    assert made.status_code == 200, made.text
    second = made.json()["hash"]
    compared = get(served, f"/ops/policies?compare={first}").text
    assert "probe 3% -&gt; 0%" in compared
    form = {name: re.search(rf'name="{name}" value="([^"]*)"', compared)[1] for name in ("token", "seen", "hash")}
    assert (form["seen"], form["hash"]) == (second, first)
    form["reason"] = "as it was"
    assert post(served, form | {"token": "0" * 32}).status_code == 403
    assert post(served, form | {"token": "é"}).status_code == 403
    assert post(served, form, **{"sec-fetch-site": "cross-site"}).status_code == 403
    assert post(served, form, origin="http://evil.example").status_code == 403
    assert get(served, "/v1/policy").json()["hash"] == second
    done = post(served, form, origin=served.url, **{"sec-fetch-site": "same-origin"})
    assert done.status_code == 200
    assert f"{first} is in force again" in done.text
    assert get(served, "/v1/policy").json()["hash"] == first
    again = post(served, form)
    assert again.status_code == 409
    assert 'role="alert"' in again.text


@pytest.mark.parametrize(("since", "step"), [(900, 1), (3600, 1), (86_400, 15), (7 * 86_400, 60), (90 * 86_400, 1440)])
def test_a_window_has_a_point_for_each_step_and_gaps_are_not_zeros_of_speed(since, step):
    assert step_minutes(since) == step
    series = series_of([], since, time.time())
    assert len(series.at) - since / (60 * step) in (0, 1)
    tpot = next(chart for chart in series.charts if chart.id == "tpot")
    assert set(tpot.lines[0].values) == {None}
