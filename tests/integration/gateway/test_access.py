"""Keys, roles, limits and forced paths, over HTTP with a real database and a real Redis."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import openai
import pytest
from aiohttp import web

from gateway.access import Access, duration, is_loopback
from gateway.db import Database
from gateway.db.keys import new_key
from gateway.errors import SettingsError
from gateway.settings import Settings
from tests.fixtures.servers import GatewayServer, Scripted, completion, policy_text, request, wait_until
from tests.fixtures.stores import RedisServer

Start = Callable[..., GatewayServer]
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 10}
PATIENT = {"BREAKEVEN_REDIS_TIMEOUT_S": "10"}
"""For tests of counts in Redis: by default a gateway that gets no answer in 50 ms counts alone."""


def make_keys(url: str, *keys: dict[str, Any]) -> list[tuple[str, str]]:
    """Store keys; returns (key id, token) of each."""

    async def store() -> list[tuple[str, str]]:
        database = Database(url)
        await database.migrate()
        made = []
        for key in keys:
            stored, token = new_key(created_at=datetime.now(UTC), **key)
            await database.create_key(stored)
            made.append((stored.key_id, token))
        await database.aclose()
        return made

    return asyncio.run(store())


def revoke(url: str, key_id: str) -> None:
    async def call() -> None:
        database = Database(url)
        assert await database.revoke_key(key_id)
        await database.aclose()

    asyncio.run(call())


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def chat(
    gateway: GatewayServer, headers: dict[str, str] | None = None, **fields: Any
) -> tuple[int, dict[str, str], Any]:
    status, sent, body = request("POST", f"{gateway.url}/v1/chat/completions", {**CHAT, **fields}, headers)
    return status, sent, json.loads(body)


@pytest.fixture
def database_url(tmp_path: Path) -> str:
    return f"sqlite+aiosqlite:///{tmp_path}/keys.db"


def test_on_loopback_without_keys_anyone_may_ask_and_force(upstream: Scripted, start_gateway: Start) -> None:
    gateway = start_gateway(policy_text(("pool", "openai", upstream.url)))
    for headers in ({}, bearer("anything"), {"authorization": "Basic x"}, {"x-breakeven-path": "plain"}):
        status, sent, _ = chat(gateway, headers)
        assert status == 200
        assert sent["x-breakeven-path"] == "plain"
    assert chat(gateway, {"x-breakeven-arm": "pool/plain"})[1]["x-breakeven-arm"] == "pool/plain"


def test_once_a_key_exists_keys_are_required(upstream: Scripted, start_gateway: Start, database_url: str) -> None:
    env = {"BREAKEVEN_DATABASE_URL": database_url}
    gateway = start_gateway(policy_text(("pool", "openai", upstream.url)), env=env)
    assert chat(gateway)[0] == 200
    (key_id, app), (_, operator) = make_keys(
        database_url, {"role": "app", "name": "shop"}, {"role": "operator", "name": "ann"}
    )
    # Both: keys may be read while only one of them is there.
    wait_until(lambda: chat(gateway)[0] == 401 and chat(gateway, bearer(operator))[0] == 200)
    status, sent, body = chat(gateway)
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["type"] == "authentication_error"
    assert sent["www-authenticate"] == "Bearer"
    assert chat(gateway, bearer("bk-000000000000-" + "x" * 43))[2]["error"]["code"] == "invalid_api_key"
    assert chat(gateway, bearer(app))[0] == 200
    wait_until(lambda: gateway.records[-1].key_id == key_id)
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="wrong", max_retries=0).models.list()
    status, _, body = chat(gateway, {**bearer(app), "x-breakeven-path": "plain"})
    assert (status, body["error"]["param"]) == (403, "x-breakeven-path")
    assert chat(gateway, {**bearer(app), "x-breakeven-path": "auto"})[0] == 200
    assert chat(gateway, {**bearer(operator), "x-breakeven-path": "plain"})[0] == 200
    assert chat(gateway, bearer(app), speculation={"method": "ngram", "k": 4})[0] == 200
    assert "speculation" not in upstream.bodies[-1]
    classify = f"{gateway.url}/v1/classify"
    assert request("POST", classify, CHAT, bearer(app))[0] == 403
    status, _, raw = request("POST", classify, CHAT, bearer(operator))
    assert status == 200
    assert json.loads(raw)["task"] == "chat"
    for path in ("/ops", "/v1/policy"):
        assert request("GET", gateway.url + path)[0] == 401
        assert request("GET", gateway.url + path, headers=bearer(app))[0] == 403
        assert request("GET", gateway.url + path, headers=bearer(operator))[0] == 200
    assert request("GET", f"{gateway.url}/healthz")[0] == 200
    revoke(database_url, key_id)
    wait_until(lambda: chat(gateway, bearer(app))[0] == 401)
    assert chat(gateway, bearer(operator))[0] == 200


def test_requests_per_minute_are_limited_and_told(
    upstream: Scripted, start_gateway: Start, database_url: str, valkey_server: RedisServer
) -> None:
    ((_, token),) = make_keys(
        database_url, {"role": "app", "name": "a", "requests_per_minute": 3, "tokens_per_minute": 100_000}
    )
    env = {"BREAKEVEN_DATABASE_URL": database_url, "BREAKEVEN_REDIS_URL": valkey_server.url} | PATIENT
    gateway = start_gateway(policy_text(("pool", "openai", upstream.url)), env=env)
    other = start_gateway(policy_text(("pool", "openai", upstream.url)), env=env)
    seen = [chat(gateway, bearer(token)), chat(other, bearer(token)), chat(gateway, bearer(token))]
    assert [status for status, _, _ in seen] == [200, 200, 200]
    assert [sent["x-ratelimit-remaining-requests"] for _, sent, _ in seen] == ["2", "1", "0"]
    assert seen[0][1]["x-ratelimit-limit-requests"] == "3"
    assert seen[0][1]["x-ratelimit-limit-tokens"] == "100000"
    assert seen[0][1]["x-ratelimit-reset-requests"].endswith("s")
    status, sent, body = chat(other, bearer(token))
    assert status == 429
    assert body["error"]["type"] == "rate_limit_error"
    assert 1 <= int(sent["retry-after"]) <= 21
    assert int(sent["retry-after-ms"]) > 0
    assert sent["x-ratelimit-remaining-requests"] == "0"
    with pytest.raises(openai.RateLimitError):
        openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=token, max_retries=0).chat.completions.create(
            model="m", messages=CHAT["messages"]
        )


def test_while_redis_is_frozen_limits_hold_in_memory_and_nobody_waits(
    upstream: Scripted, start_gateway: Start, database_url: str, valkey_server: RedisServer
) -> None:
    ((_, token),) = make_keys(database_url, {"role": "app", "name": "a", "requests_per_minute": 3})
    env = {"BREAKEVEN_DATABASE_URL": database_url, "BREAKEVEN_REDIS_URL": valkey_server.url}
    gateway = start_gateway(policy_text(("pool", "openai", upstream.url)), env=env)
    valkey_server.signal(signal.SIGSTOP)
    # For a request that waited for the frozen server no answer would ever come.
    assert [chat(gateway, bearer(token))[0] for _ in range(4)] == [200, 200, 200, 429]
    limits = json.loads(request("GET", f"{gateway.url}/readyz")[2])["stores"]["limits"]
    assert (limits["ok"], "limits alone" in limits["detail"]) == (False, True)
    valkey_server.signal(signal.SIGCONT)


def test_tokens_are_settled_to_what_was_used(
    upstream: Scripted, start_gateway: Start, database_url: str, valkey_server: RedisServer
) -> None:
    ((_, token),) = make_keys(database_url, {"role": "app", "name": "a", "tokens_per_minute": 1000})
    env = {"BREAKEVEN_DATABASE_URL": database_url, "BREAKEVEN_REDIS_URL": valkey_server.url} | PATIENT
    gateway = start_gateway(policy_text(("pool", "openai", upstream.url)), env=env)
    status, sent, _ = chat(gateway, bearer(token), max_tokens=900)
    assert status == 200
    assert int(sent["x-ratelimit-remaining-tokens"]) < 100

    async def wordy(_: web.Request, __: dict[str, Any]) -> web.Response:
        return web.json_response(completion() | {"usage": {"prompt_tokens": 5, "completion_tokens": 800}})

    upstream.handler = wordy
    wait_until(lambda: chat(gateway, bearer(token), max_tokens=900)[0] == 200)  # 8 of 900 were used
    status, sent, body = chat(gateway, bearer(token), max_tokens=1000)  # 805 are gone for most of a minute
    assert status == 429
    assert "tokens per minute" in body["error"]["message"]


def test_default_limits_hold_for_keys_without_their_own(
    upstream: Scripted, start_gateway: Start, database_url: str
) -> None:
    ((_, token),) = make_keys(database_url, {"role": "app", "name": "a"})
    env = {"BREAKEVEN_DATABASE_URL": database_url, "BREAKEVEN_REQUESTS_PER_MINUTE": "1"}
    gateway = start_gateway(policy_text(("pool", "openai", upstream.url)), env=env)
    assert [chat(gateway, bearer(token))[0] for _ in range(2)] == [200, 429]


def test_keys_are_made_over_http_and_revoked(upstream: Scripted, start_gateway: Start) -> None:
    gateway = start_gateway(policy_text(("pool", "openai", upstream.url)))
    keys = f"{gateway.url}/v1/keys"
    assert request("POST", keys, b"{}", {"content-type": "text/plain"})[0] == 400
    for wrong, param in (({}, "name"), ({"name": "a", "role": "king"}, "role"), ({"name": "a", "colour": 1}, None),
                         ({"name": "a", "requests_per_minute": 0}, "requests_per_minute")):  # fmt: skip
        status, _, raw = request("POST", keys, wrong)
        assert (status, json.loads(raw)["error"]["param"]) == (400, param)
    status, _, raw = request("POST", keys, {"name": "ann", "role": "operator"})
    assert status == 201
    operator = json.loads(raw)["key"]
    assert chat(gateway)[0] == 401
    status, _, raw = request("POST", keys, {"name": "shop", "requests_per_minute": 5}, bearer(operator))
    made = json.loads(raw)
    assert (made["role"], made["may_force"], made["requests_per_minute"]) == ("app", False, 5)
    assert chat(gateway, bearer(made["key"]))[0] == 200
    assert request("GET", keys, headers=bearer(made["key"]))[0] == 403
    listed = request("GET", keys, headers=bearer(operator))[2]
    assert {key["name"] for key in json.loads(listed)} == {"ann", "shop"}
    assert operator.encode() not in listed
    assert request("DELETE", f"{keys}/{made['id']}", headers=bearer(operator))[0] == 200
    assert chat(gateway, bearer(made["key"]))[0] == 401
    assert request("DELETE", f"{keys}/{made['id']}", headers=bearer(operator))[0] == 404


async def no_keys() -> list[Any]:
    return []


async def unreachable() -> list[Any]:
    raise OSError("connection refused")


async def test_off_loopback_without_keys_it_refuses_to_start() -> None:
    access = Access(host="0.0.0.0", load=no_keys)
    with pytest.raises(SettingsError, match="breakeven keys create"):
        await access.start()
    await access.aclose()


async def test_keys_are_remembered_while_the_database_is_away(tmp_path: Path) -> None:
    stored, token = new_key("app", "a", created_at=datetime.now(UTC))

    async def one() -> list[Any]:
        return [stored]

    cache = tmp_path / "keys.json"
    first = Access(host="0.0.0.0", load=one, cache=cache)
    await first.start()
    await first.aclose()
    assert token.encode() not in cache.read_bytes()
    assert cache.stat().st_mode & 0o077 == 0
    again = Access(host="127.0.0.1", load=unreachable, cache=cache)
    await again.start()
    assert not again.open_to_all
    assert again.identify(bearer(token)).name == "a"
    assert "connection refused" in again.error
    await again.aclose()


def test_the_database_away_is_503_never_401(upstream: Scripted, start_gateway: Start) -> None:
    env = {"BREAKEVEN_HOST": "0.0.0.0", "BREAKEVEN_DATABASE_URL": "postgresql://127.0.0.1:1/none"}
    gateway = start_gateway(policy_text(("pool", "openai", upstream.url)), env=env)
    status, sent, body = chat(gateway, bearer("bk-000000000000-" + "x" * 43))
    assert (status, body["error"]["code"]) == (503, "keys_unavailable")
    assert sent["retry-after"] == "1"


@pytest.mark.parametrize(
    ("host", "answer"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("[::1]", True), ("localhost", True), ("0.0.0.0", False),
     ("::", False), ("10.0.0.1", False), ("example.org", False), ("", False)],
)  # fmt: skip
def test_loopback(host: str, answer: bool) -> None:
    assert is_loopback(host) is answer


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (0.012, "12ms"), (1.5, "1.5s"), (20, "20s"), (63.2, "1m3s"), (600, "10m0s")]
)
def test_durations_are_written_as_openai_does(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_settings_reach_the_application() -> None:
    assert Settings.from_env({"BREAKEVEN_TOKENS_PER_MINUTE": "5"}).limits.tokens_per_minute == 5
