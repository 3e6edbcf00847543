"""llama.cpp's real server, killed and started again on its port: a new epoch, and a draft that did not come back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.backends.draft import ANSWERS, ROUNDS
from gateway.epochs import kind_of
from tests.fixtures.llamacpp import MODEL, llama_server
from tests.fixtures.pools import ask, two_pools
from tests.fixtures.ports import free_port
from tests.fixtures.servers import GatewayServer, get, wait_until

pytestmark = [pytest.mark.model, pytest.mark.timeout(900)]
Start = Callable[..., GatewayServer]
PROMPT = "Count from one to twenty."


def _spec(gateway: GatewayServer) -> dict[str, Any]:
    return dict(get(f"{gateway.url}/readyz")[1]["backends"]["spec"])


def _ask(gateway: GatewayServer, arm: str, tokens: int = 8) -> tuple[int, str]:
    status, headers, _ = ask(gateway, arm, PROMPT, model=MODEL, max_tokens=tokens)
    return status, headers.get("x-breakeven-arm", "")


def test_a_restart_is_seen_and_so_is_a_draft_left_out(start_gateway: Start, small_gguf: Path) -> None:
    port = str(free_port())
    with llama_server(small_gguf, "--port", port, "--ngram", "4") as (spec, _):
        gateway = two_pools(start_gateway, "llamacpp", (spec, "ngram-k4"), spec)
        assert _ask(gateway, "spec/ngram-k4") == (200, "spec/ngram-k4")
        first = _spec(gateway)
    with llama_server(small_gguf, "--port", port, "--ngram", "4"):
        wait_until(lambda: (seen := _spec(gateway))["epoch"] != first["epoch"] and seen["healthy"])
        second = _spec(gateway)
        assert kind_of(second["epoch"]) == kind_of(first["epoch"])  # what was known is lent to it
        assert (second["arms"], second["detail"]) == (["spec/ngram-k4"], "")
    with llama_server(small_gguf, "--port", port):
        wait_until(lambda: (seen := _spec(gateway))["epoch"] != second["epoch"] and seen["healthy"])
        third = _spec(gateway)
        assert kind_of(third["epoch"]) != kind_of(second["epoch"])
        assert third["arms"] == ["spec/plain"]
        assert "does not speculate" in third["detail"]
        assert _ask(gateway, "spec/plain") == (200, "spec/plain")


def test_a_draft_that_died_in_a_restart_is_noticed_within_the_stated_answers(
    start_gateway: Start, small_gguf: Path, dead_gguf: Path
) -> None:
    drafting = ["--port", str(free_port()), "--draft-length", "1", "--draft"]
    with llama_server(small_gguf, *drafting, str(small_gguf)) as (spec, _):
        gateway = two_pools(start_gateway, "llamacpp", (spec, "draft_model-k1"), spec)
        before = _spec(gateway)
        assert _ask(gateway, "spec/draft_model-k1", 24) == (200, "spec/draft_model-k1")
        wait_until(lambda: len(gateway.records) == 1)
        alive = gateway.records[0].spec
        assert alive is not None
        assert alive.accepted > alive.drafted / 2
    with llama_server(small_gguf, *drafting, str(dead_gguf)):
        wait_until(lambda: (seen := _spec(gateway))["epoch"] != before["epoch"] and seen["healthy"])
        for number in range(ANSWERS):
            assert _spec(gateway)["detail"] == "", number
            assert _ask(gateway, "spec/draft_model-k1", 24) == (200, "spec/draft_model-k1")
        wait_until(lambda: len(gateway.records) == 1 + ANSWERS)
        rounds = sum(record.spec.rounds for record in gateway.records[1:] if record.spec)
        assert rounds >= ROUNDS
        assert f"its draft is dead: no token was accepted in {rounds} rounds" in _spec(gateway)["detail"]
