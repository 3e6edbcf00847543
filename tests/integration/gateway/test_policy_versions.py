"""Policy activations in SQLite and PostgreSQL, and the word from gateway to gateway through Valkey and Redis."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator

import pytest
from sqlalchemy import select

from gateway.db import Database
from gateway.db.models import AuditEntry
from gateway.errors import StoreUnavailable
from gateway.stats.policy import PolicyChannel
from tests.fixtures.stores import RedisServer


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    found = Database(database_url, timeout_s=20.0)  # eight may wait for each other
    await found.migrate()
    yield found
    await found.aclose()


async def test_activations_are_kept_in_order_with_who_and_why(database: Database) -> None:
    assert await database.latest_activation() is None
    first = await database.activate_policy("h1", "p.yaml", "text 1", actor="file", origin="file", reason="p.yaml")
    second = await database.activate_policy("h2", "p.yaml", "text 2\0", actor="ann", origin="api", expected="h1")
    same = await database.activate_policy("h2", "p.yaml", "text 2", actor="bob", origin="api")
    back = await database.activate_policy("h1", "p.yaml", "text 1", actor="ann", origin="rollback", reason="slow")
    assert first is not None
    assert second is not None
    assert same == second
    assert back is not None
    history = await database.policy_history()
    assert [(entry.id, entry.hash, entry.origin, entry.actor, entry.reason) for entry in history] == [
        (back.id, "h1", "rollback", "ann", "slow"),
        (second.id, "h2", "api", "ann", ""),
        (first.id, "h1", "file", "file", "p.yaml"),
    ]
    assert await database.latest_activation() == back
    assert await database.latest_activation("api") == second
    assert await database.policy_text("h1") == ("h1", "p.yaml", "text 1")
    assert await database.policy_text("h") is None
    assert await database.policy_text("%") is None
    async with database._read() as connection:
        rows = (await connection.execute(select(AuditEntry.action, AuditEntry.details).order_by(AuditEntry.id))).all()
    assert [(action, details["previous"]) for action, details in rows] == [
        ("policy.file", None),
        ("policy.api", "h1"),
        ("policy.rollback", "h2"),
    ]


async def test_of_many_who_change_the_same_version_one_wins(database: Database) -> None:
    await database.activate_policy("h0", "p", "t", actor="file", origin="file")
    changes = (
        database.activate_policy(f"h{n}", "p", "t", actor=f"op-{n}", origin="api", expected="h0") for n in range(1, 9)
    )
    won = [made for made in await asyncio.gather(*changes) if made is not None]
    assert len(won) == 1
    assert (await database.latest_activation()) == won[0]


async def test_the_word_goes_round(redis_url: str) -> None:
    one, two = PolicyChannel(redis_url), PolicyChannel(redis_url)
    assert await two.latest() is None
    assert await two.text("h1") is None
    await one.publish(7, "h1", "text é")
    assert await two.latest() == (7, "h1")
    assert await two.text("h1") == "text é"
    await one.aclose()
    await two.aclose()


async def test_a_frozen_server_costs_little(valkey_server: RedisServer) -> None:
    channel = PolicyChannel(valkey_server.url, timeout_s=0.1)
    valkey_server.signal(signal.SIGSTOP)
    for call in (channel.latest(), channel.text("h"), channel.publish(1, "h", "t")):
        with pytest.raises(StoreUnavailable):
            await asyncio.wait_for(call, 60)
    await channel.aclose()
