"""`/ops` over HTTP: the operator role, a browser's Basic password, headers, forms, windows and live events."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime

import pytest
from litestar import Litestar
from litestar.di import Provide
from litestar.testing import AsyncTestClient

from gateway.access import Access
from gateway.api.errors import framework_handler
from gateway.api.ops import OpsController, ended_of
from gateway.db import Database, new_key
from gateway.ops.collect import OpsReader
from gateway.ops.live import LiveReports
from tests.fixtures.records import make_record


@pytest.fixture
async def database(tmp_path):
    opened = Database(f"sqlite:///{tmp_path}/ops.db")
    await opened.migrate()
    await opened.insert_records([make_record("r1"), make_record("r2", task="chat")])
    yield opened
    await opened.aclose()


@pytest.fixture
async def client(database):
    access = Access(host="127.0.0.1", load=database.load_keys)
    await access.refresh()
    live = LiveReports(OpsReader(database))
    app = Litestar(
        [OpsController],
        dependencies={
            "access": Provide(lambda: access, sync_to_thread=False),
            "ops": Provide(lambda: live, sync_to_thread=False),
        },
        exception_handlers={Exception: framework_handler},
        openapi_config=None,
    )
    async with AsyncTestClient(app) as opened:
        opened.access = access
        yield opened


async def keys(client, database):
    """Create an operator's and an application's key."""
    tokens = {}
    for role in ("operator", "app"):
        stored, tokens[role] = new_key(role, role, created_at=datetime.now(UTC))
        await database.create_key(stored)
    await client.access.refresh()
    return tokens


def basic(password):
    return {"authorization": "Basic " + base64.b64encode(f"anyone:{password}".encode()).decode()}


async def test_page_on_loopback_without_keys(client):
    answer = await client.get("/ops")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    assert 'data-task="code"' in answer.text
    assert "unsafe-inline" not in answer.headers["content-security-policy"]


async def test_once_a_key_exists_only_operators_get_in(client, database):
    tokens = await keys(client, database)
    for path in (
        "/ops",
        "/ops/report.json",
        "/ops/report.csv",
        "/ops/report.html",
        "/ops/report.pdf",
        "/ops/reports",
        "/ops/events",
    ):
        assert (await client.get(path)).status_code == 401
        refused = await client.get(path, headers={"authorization": f"Bearer {tokens['app']}"})
        assert refused.status_code == 403
        assert set(refused.json()["error"]) == {"message", "type", "param", "code"}
    allowed = await client.get("/ops/report.json", headers={"authorization": f"Bearer {tokens['operator']}"})
    assert allowed.status_code == 200


async def test_a_revoked_key_ends_its_live_page(client, database):
    tokens = await keys(client, database)
    ended = ended_of(client.access, basic(tokens["operator"]), lambda: False)
    assert not ended()
    (operator,) = (key for key in await database.load_keys() if key.role == "operator")
    await database.revoke_key(operator.key_id)
    await client.access.refresh()
    assert ended()


async def test_a_browser_is_asked_for_the_key_and_sends_it_as_password(client, database):
    tokens = await keys(client, database)
    asked = await client.get("/ops", headers={"accept": "text/html"})
    assert asked.status_code == 401
    assert asked.headers["www-authenticate"].startswith("Basic realm=")
    script = await client.get("/ops/events", headers={"accept": "text/event-stream"})
    assert not script.headers["www-authenticate"].startswith("Basic")
    assert (await client.get("/ops", headers=basic(tokens["operator"]))).status_code == 200
    assert (await client.get("/ops", headers=basic(tokens["app"]))).status_code == 403
    assert (await client.get("/ops", headers=basic("wrong"))).status_code == 401
    broken = await client.get("/ops", headers={"authorization": "Basic !!!"})
    assert broken.status_code == 401


async def test_forms(client):
    report = (await client.get("/ops/report.json", params={"since": "24h"})).json()
    assert [task["task"] for task in report["tasks"]] == ["code", "chat"]
    assert report["since_s"] == 86400
    table = await client.get("/ops/report.csv")
    assert table.text.splitlines()[0].startswith("task,requests,")
    assert table.headers["content-type"].startswith("text/csv")
    kept = await client.get("/ops/report.html")
    assert "<script" not in kept.text
    assert "unsafe-inline" in kept.headers["content-security-policy"]
    reports = await client.get("/ops/reports", params={"since": "24h"})
    assert "<script" not in reports.text
    assert 'href="/ops/report.pdf?since=24h"' in reports.text
    assert "randomised holdout" in (await client.get("/ops/report.txt")).text
    document = await client.get("/ops/report.pdf", params={"since": "24h"})
    assert document.content.startswith(b"%PDF-")
    assert document.headers["content-disposition"] == 'attachment; filename="breakeven-24h.pdf"'


@pytest.mark.parametrize("path", ["/ops", "/ops/report.json", "/ops/events"])
async def test_a_bad_window_is_a_400_that_names_it(client, path):
    answer = await client.get(path, params={"since": "yesterday"})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == "since"
    assert "expected a number with s, m, h, d or w" in error["message"]


@pytest.mark.parametrize("name", ["ops.css", "ops.js", "icon.svg"])
async def test_static_files_need_no_key(client, database, name):
    await keys(client, database)
    answer = await client.get(f"/ops/static/{name}")
    assert answer.status_code == 200
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("name", ["..%2fops.html", "live.html", "ops.css%00"])
async def test_nothing_but_the_static_files(client, name):
    assert (await client.get(f"/ops/static/{name}")).status_code == 404


async def test_json_can_be_read_back(client):
    body = (await client.get("/ops/report.json")).content
    assert json.loads(body)["tasks"][0]["a"] == pytest.approx(2.75)
