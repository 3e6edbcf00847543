"""Two of llama.cpp's real servers behind one arm: one killed in mid-load, one whose draft proposes only rubbish."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.llamacpp import MODEL, llama_server
from tests.fixtures.pools import ask
from tests.fixtures.ports import free_port
from tests.fixtures.servers import GatewayServer, get, wait_until

pytestmark = [pytest.mark.model, pytest.mark.timeout(900)]
Start = Callable[..., GatewayServer]


@contextmanager
def two_replicas(
    start_gateway: Start, model: Path, arm: str, first: list[str], second: list[str]
) -> Iterator[tuple[Any, ...]]:
    """One arm of two servers; yields the gateway, and URL and process of each."""
    with llama_server(model, *first) as one, llama_server(model, *second) as two:
        gateway = start_gateway(
            f"version: 1\ntasks: default\nbackends:\n"
            f"  pool: {{kind: llamacpp, urls: ['{one[0]}', '{two[0]}'], model: {MODEL}, arms: {arm}}}\n"
            "rules:\n  - {name: all, path: auto, probe: 0%, holdout: 0%}\n"
        )
        wait_until(lambda: pool(gateway)["healthy"] and "down" not in pool(gateway)["detail"])
        yield gateway, one, two


def pool(gateway: GatewayServer) -> dict[str, Any]:
    return dict(get(f"{gateway.url}/readyz")[1]["backends"]["pool"])


def send(gateway: GatewayServer, number: int, tokens: int = 24, *, stream: bool = True) -> tuple[int, bytes]:
    status, _, raw = ask(gateway, "", f"{number} is a number. Why?", model=MODEL, max_tokens=tokens, stream=stream)
    return status, raw


def test_a_replica_killed_in_mid_load_fails_only_what_had_begun(start_gateway: Start, small_gguf: Path) -> None:
    port = str(free_port())
    with two_replicas(start_gateway, small_gguf, "plain", ["--port", port], []) as (gateway, one, _):
        killed = threading.Event()

        def client(number: int) -> tuple[bool, int, bytes]:
            late = number >= 16 and killed.wait(60)
            return (late, *send(gateway, number, 24 if late else 48, stream=number % 4 > 0))

        with ThreadPoolExecutor(8) as clients:
            answers = [clients.submit(client, number) for number in range(32)]
            wait_until(lambda: len(gateway.records) >= 6)
            one[1].send_signal(signal.SIGKILL)
            killed.set()
            done = [answer.result() for answer in answers]
        assert [status for _, status, _ in done] == [200] * 32
        broken = [late for late, _, raw in done if b'"error"' in raw]
        assert not any(broken)  # whatever came after: served, and at once
        for _, _, raw in done:
            assert b'"content":"' in raw, raw  # what broke off had begun
        assert sum(late for late, _, _ in done) == 16
        wait_until(lambda: "1 of 2 replicas down" in pool(gateway)["detail"])
        with llama_server(small_gguf, "--port", port):
            wait_until(lambda: pool(gateway)["detail"] == "")
            assert send(gateway, 99)[0] == 200


def test_a_replica_whose_draft_died_is_left_out(start_gateway: Start, small_gguf: Path, dead_gguf: Path) -> None:
    drafting = ["--draft-length", "1", "--draft"]
    with two_replicas(
        start_gateway, small_gguf, "draft_model-k1", [*drafting, str(small_gguf)], [*drafting, str(dead_gguf)]
    ) as (gateway, _one, (dying, _)):
        for number in range(80):
            assert send(gateway, number, 20, stream=number % 2 > 0)[0] == 200
            if "left out" in pool(gateway)["detail"]:
                break
        assert f"left out for a dead draft: {dying}" in pool(gateway)["detail"]
        wait_until(lambda: len(gateway.records) == number + 1)  # a record may come a moment after its answer
        for later in range(200, 206):
            assert send(gateway, later, 8)[0] == 200
        wait_until(lambda: len(gateway.records) == number + 7)
        late = [record.spec for record in gateway.records[-6:]]
        assert all(spec is not None and spec.accepted for spec in late)  # all from the one that drafts
