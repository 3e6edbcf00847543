"""Redis frozen, then killed, under a running gateway: nobody waits, nothing is lost, `/readyz` says so."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gateway.db import Database
from tests.fixtures.servers import GatewayServer, Scripted, policy_text, request, wait_until
from tests.fixtures.stores import RedisServer

Start = Callable[..., GatewayServer]
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def ask(gateway: GatewayServer) -> float:
    """Send one request that must succeed; returns its seconds."""
    began = time.monotonic()
    assert request("POST", f"{gateway.url}/v1/chat/completions", CHAT)[0] == 200
    return time.monotonic() - began


def redis_state(gateway: GatewayServer) -> Any:
    return json.loads(request("GET", f"{gateway.url}/readyz")[2])["stores"]["redis"]


def recorded(url: str) -> int:
    async def count() -> int:
        database = Database(url, timeout_s=20.0)
        rows = await database.window(time.time() - 600)
        await database.aclose()
        return sum(row.sums.requests for row in rows.activity)

    return asyncio.run(count())


def test_a_frozen_then_killed_redis_delays_and_loses_nothing(
    upstream: Scripted, start_gateway: Start, valkey_server: RedisServer, tmp_path: Path
) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path}/records.db"
    env = {"BREAKEVEN_REDIS_URL": valkey_server.url, "BREAKEVEN_DATABASE_URL": url}
    gateway = start_gateway(policy_text(("pool", "openai", upstream.url)), env=env)
    wait_until(lambda: redis_state(gateway)["ok"])
    usual = min(ask(gateway) for _ in range(3))
    valkey_server.signal(signal.SIGSTOP)
    frozen = sorted(ask(gateway) for _ in range(9))
    assert frozen[4] < usual + 5.0  # the median: a request that waited for the frozen server would get no answer
    wait_until(lambda: not redis_state(gateway)["ok"])
    assert redis_state(gateway)["detail"]
    assert request("GET", f"{gateway.url}/readyz")[0] == 200
    valkey_server.signal(signal.SIGCONT)
    valkey_server.kill()
    assert sorted(ask(gateway) for _ in range(9))[4] < usual + 5.0
    valkey_server.start()
    wait_until(lambda: redis_state(gateway)["ok"])
    wait_until(lambda: recorded(url) == 21)
