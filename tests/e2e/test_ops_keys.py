"""`/ops` in a browser once API keys exist: it asks for the key, an operator's lets in, live events included."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.e2e.live import until_live
from tests.e2e.served import BREAKEVEN, clean_environment
from tests.fixtures.servers import policy_text


@pytest.fixture
def database_url(tmp_path):
    return f"sqlite:///{tmp_path}/keys.db"


def create_key(role, database_url):
    """Create a key as an operator would, and return it."""
    command = [BREAKEVEN, "keys", "create", "--role", role, "--name", role, "--database-url", database_url]
    done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, timeout=200, check=True)
    return re.search(r"\bbk-[\w-]+", done.stdout)[0]


def test_an_operators_key_opens_the_page_and_its_events(database_url, chromium, upstream, start_gateway):
    keys = {role: create_key(role, database_url) for role in ("operator", "app")}
    policy = policy_text(("pool", "openai", upstream.url))
    gateway = start_gateway(policy, env={"BREAKEVEN_DATABASE_URL": database_url})

    def visit(password):
        context = chromium.new_context(http_credentials={"username": "anyone", "password": password})
        context.set_default_timeout(120_000)
        page = context.new_page()
        return page, page.goto(f"{gateway.url}/ops")

    page, answer = visit(keys["operator"])
    assert answer.status == 200
    until_live(page)
    assert "No traffic in this window" in page.inner_text("#now-title")
    page.context.close()
    for password, status in ((keys["app"], 403), ("bk-wrong", 401)):
        page, answer = visit(password)
        assert answer.status == status
        page.context.close()
