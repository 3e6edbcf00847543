"""Prompts and answers are kept where a rule says so, for as long as it says; nowhere else is there any trace."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.db import Database, StoredText
from gateway.errors import StoreUnavailable
from gateway.tap import Kept
from gateway.texts import TextKeeper, stored
from tests.fixtures.records import make_record
from tests.fixtures.servers import Scripted, files_below, get, request, wait_until

SECRET_WORDS = "tell nobody about the periwinkle safe"
ANSWER = "wörld"


def policy(upstream: Scripted, *rules: str) -> str:
    lines = "".join(f"  - {{{rule}}}\n" for rule in rules)
    return f"version: 1\nbackends:\n  a: {{kind: openai, url: '{upstream.url}', arms: plain}}\nrules:\n{lines}"


KEEP = "name: kept, holdout: 0%, store: {prompts: all, retention: 2h}"


def ask(url: str, **fields: Any) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": SECRET_WORDS}], **fields}
    status, _, answer = request("POST", f"{url}/v1/chat/completions", body)
    assert status == 200, answer


def database_of(gateway: Any, tmp_path: Path) -> str:
    (found,) = tmp_path.glob("gateway-*/*.db")
    return f"sqlite:///{found}"


def texts(url: str) -> list[StoredText]:
    async def read() -> list[StoredText]:
        database = Database(url)
        try:
            return await database.texts(0.0)
        finally:
            await database.aclose()

    return asyncio.run(read())


def test_prompt_and_answer_are_kept_where_a_rule_says_so(start_gateway, upstream, tmp_path):
    gateway = start_gateway(policy(upstream, KEEP))
    ask(gateway.url, stream=True, user="someone")
    ask(gateway.url)
    ask(gateway.url, store=False)
    wait_until(lambda: get(f"{gateway.url}/readyz")[1]["stores"]["texts"]["kept"] == 2)
    found = texts(database_of(gateway, tmp_path))
    assert {row.request_id for row in found} == {record.request_id for record in gateway.records[:2]}
    for row in found:
        assert json.loads(row.prompt) == [{"role": "user", "content": SECRET_WORDS}]
        assert (row.rule, row.key_id, row.status, row.truncated) == ("kept", "anonymous", 200, False)
        assert (row.expires_at - row.at).total_seconds() == 7200
    assert [json.loads(row.completion)[0]["content"] for row in found] == ["hello wörld", "hello world"]


@pytest.mark.parametrize(
    "rules",
    [
        ("name: usual, holdout: 0%",),
        ("name: none of it, holdout: 0%, store: {prompts: none}",),
        ("name: watched, mode: observe, store: {prompts: all}", "name: rest, holdout: 0%"),
        ("name: others, when: {task: translation}, store: {prompts: all}", "name: rest, holdout: 0%"),
    ],
)
def test_otherwise_no_file_ever_holds_a_word_of_it(start_gateway, upstream, tmp_path, rules):
    gateway = start_gateway(policy(upstream, *rules))
    ask(gateway.url, stream=True)
    ask(gateway.url)
    delivered = lambda: {s["name"]: s for s in get(f"{gateway.url}/readyz")[1]["stores"]["recorder"]["sinks"]}  # noqa: E731
    wait_until(lambda: delivered()["database"]["delivered"] == 2)
    assert texts(database_of(gateway, tmp_path)) == []
    for path, content in files_below(tmp_path):
        assert b"periwinkle" not in content, path
        assert ANSWER.encode() not in content, path


def test_the_spool_never_holds_text_even_where_it_is_kept(start_gateway, upstream, tmp_path):
    gateway = start_gateway(policy(upstream, KEEP))
    ask(gateway.url)
    wait_until(lambda: get(f"{gateway.url}/readyz")[1]["stores"]["texts"]["kept"] == 1)
    spool = [content for path, content in files_below(tmp_path) if "spool" in path.parts]
    assert spool
    assert all(b"periwinkle" not in content for content in spool)


def text(name: str, *, at: float, retention: float, **changes: Any) -> StoredText:
    kept = Kept({"messages": [{"role": "user", "content": "x"}]}, 1, make_record(name, at=at), retention, None)
    return msgspec.structs.replace(stored(kept), **changes)


@pytest.fixture
async def database(database_url):
    opened = Database(database_url)
    await opened.migrate()
    yield opened
    await opened.aclose()


async def test_texts_end_with_their_own_retention(database):
    now = time.time()
    old = [text(f"old{n}", at=now - 7200, retention=3600) for n in range(450)]
    await database.insert_texts([*old, text("new", at=now - 7200, retention=86400)])
    assert [row.request_id for row in await database.texts(0.0, now=now)] == ["new"]
    assert len(await database.texts(0.0, now=now - 7000)) == 451
    await database.maintain(now=now)
    assert [row.request_id for row in await database.texts(0.0, now=now - 7000)] == ["new"]
    await database.maintain(now=now + 90_000)
    assert await database.texts(0.0, now=now - 7000) == []


async def test_a_text_is_kept_once_and_any_character_can_be(database):
    row = text("r", at=time.time(), retention=3600, prompt='"a\0b\ud800é"', completion='[{"content":"日本"}]')
    await database.insert_texts([row])
    await database.insert_texts([msgspec.structs.replace(row, prompt="other")])
    (found,) = await database.texts(0.0)
    assert (found.prompt, found.completion) == ('"a\ufffdb?é"', '[{"content":"日本"}]')


async def test_texts_are_found_and_forgotten_by_key_rule_and_request(database):
    now = time.time()
    for name, key, rule in (("1", "a", "x"), ("2", "a", "y"), ("3", "b", "x"), ("4", "b", "y")):
        await database.insert_texts([text(name, at=now + int(name), retention=3600, key_id=key, rule=rule)])
    assert [row.request_id for row in await database.texts(now, key_id="a")] == ["1", "2"]
    assert [row.request_id for row in await database.texts(now, rule="x", limit=1)] == ["3"]
    assert await database.forget_texts(actor="t", key_id="a", rule="x") == 1
    assert await database.forget_texts(actor="t", request_id="4") == 1
    assert [row.request_id for row in await database.texts(now)] == ["2", "3"]
    assert await database.forget_texts(actor="t") == 2


class Away(Database):
    """A database that is away until told otherwise."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.away = True

    async def insert_texts(self, texts: Any) -> None:
        if self.away:
            raise StoreUnavailable("gone")
        await super().insert_texts(texts)


async def test_while_the_database_is_away_texts_wait_in_bounded_memory(tmp_path):
    database = Away(f"sqlite:///{tmp_path}/d.db")
    await database.migrate()
    keeper = TextKeeper(database, limit_bytes=1000)
    await keeper.start()
    for n in range(12):
        keeper.submit(Kept({"messages": []}, 100, make_record(f"r{n}"), 3600.0, None))
    while keeper.state().ok:  # noqa: ASYNC110  # a state has no event
        await asyncio.sleep(0.05)
    assert (keeper.state().queued, keeper.state().dropped, keeper.state().detail) == (10, 2, "gone")
    database.away = False
    await keeper.aclose()
    assert (keeper.state().kept, keeper.state().queued) == (10, 0)
    assert len(await database.texts(0.0)) == 10
    await database.aclose()


async def test_one_text_that_cannot_be_kept_costs_no_other(tmp_path):
    database = Database(f"sqlite:///{tmp_path}/d.db")
    await database.migrate()
    keeper = TextKeeper(database)
    await keeper.start()
    keeper.submit(Kept({"messages": object()}, 1, make_record("bad"), 3600.0, None))
    keeper.submit(Kept({"messages": ["good"]}, 1, make_record("good"), 3600.0, None))
    await keeper.aclose()
    assert [row.request_id for row in await database.texts(0.0)] == ["good"]
    assert (keeper.state().kept, keeper.state().dropped) == (1, 1)
    await database.aclose()
