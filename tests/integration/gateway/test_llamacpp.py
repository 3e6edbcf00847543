"""llama.cpp's real server behind the gateway: its own counters are what we count, and a killed pool fails nobody."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cli.main import main
from tests.fixtures.llamacpp import GGUF, MODEL, llama_server
from tests.fixtures.pools import ask, counts_agree, two_pools
from tests.fixtures.servers import GatewayServer, request, wait_until

pytestmark = [pytest.mark.model, pytest.mark.timeout(900)]
PROMPTS = (
    "Repeat this text exactly, twice: The quick brown fox jumps over the lazy dog. The lazy dog sleeps.",
    "Copy this list as it is: red apple, green apple, red apple, green apple, red apple, blue plum.",
    "Say the word yes eight times.",
)
Start = Callable[..., GatewayServer]


@pytest.fixture(scope="module")
def pools() -> Iterator[tuple[tuple[str, Any], tuple[str, Any]]]:
    """A pool that drafts by prompt lookup and one that does not."""
    with llama_server(GGUF, "--ngram", "4") as spec, llama_server(GGUF) as plain:
        yield spec, plain


@pytest.fixture
def gateway(pools: Any, start_gateway: Start) -> GatewayServer:
    (spec, _), (plain, _) = pools
    return two_pools(start_gateway, "llamacpp", (spec, "ngram-k4"), plain)


def _readyz(gateway: GatewayServer) -> dict[str, Any]:
    return dict(json.loads(request("GET", f"{gateway.url}/readyz")[2]))


def _ask(gateway: GatewayServer, arm: str, prompt: str, **fields: Any) -> tuple[int, dict[str, str], bytes]:
    return ask(gateway, arm, prompt, model=MODEL, max_tokens=32, **fields)


def _content(raw: bytes) -> str:
    return str(json.loads(raw)["choices"][0]["message"]["content"])


def _streamed(raw: bytes) -> str:
    parts = [json.loads(line[6:]) for line in raw.decode().splitlines() if line.startswith("data: {")]
    return "".join(choice["delta"].get("content") or "" for part in parts for choice in part["choices"])


def test_we_count_what_the_server_counts_and_answers_are_equal(gateway: GatewayServer, pools: Any) -> None:
    (spec, _), _ = pools
    for prompt in PROMPTS:
        answers = [_ask(gateway, arm, prompt) for arm in ("spec/ngram-k4", "plain/plain")]
        assert [(status, headers["x-breakeven-arm"]) for status, headers, _ in answers] == [
            (200, "spec/ngram-k4"),
            (200, "plain/plain"),
        ]
        assert _content(answers[0][2]) == _content(answers[1][2])
        streamed = _ask(gateway, "spec/ngram-k4", prompt, stream=True)
        assert _streamed(streamed[2]) == _content(answers[0][2])
        assert b'"usage"' not in streamed[2]  # asked for by the gateway, not by the application
    wait_until(lambda: len(gateway.records) == 3 * len(PROMPTS))
    assert sum(record.arm.k > 0 for record in gateway.records) == 2 * len(PROMPTS)
    counts_agree(gateway, spec, "llamacpp", least=5)


def test_backends_check_finds_the_engine_and_equal_answers(pools: Any, tmp_path: Path) -> None:
    (spec, _), (plain, _) = pools
    text = f"  spec: {{kind: llamacpp, url: '{spec}', arms: ngram-k4}}\n"
    text += f"  plain: {{kind: llamacpp, url: '{plain}', arms: plain}}"
    (tmp_path / "p.yaml").write_text(f"version: 1\nbackends:\n{text}\n", encoding="utf-8")
    options = ["--policy", str(tmp_path / "p.yaml"), "--prompts", "2", "--max-tokens", "12", "--json"]
    result = CliRunner().invoke(main, ["backends", "check", *options])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [server["engine"] for server in found["servers"]] == ["llama.cpp", "llama.cpp"]
    assert all("load: running and waiting sequences" in server["measured"] for server in found["servers"])
    (audit,) = found["audits"]
    assert (audit["arm"], audit["plain"], audit["compared"], audit["equal"]) == ("spec/ngram-k4", "plain/plain", 2, 2)


def test_a_pool_that_dies_fails_nobody(gateway: GatewayServer, pools: Any) -> None:
    (_, process), _ = pools
    process.send_signal(signal.SIGKILL)
    process.wait(60)
    for _ in range(3):
        status, headers, raw = _ask(gateway, "", PROMPTS[2])
        assert (status, headers["x-breakeven-arm"]) == (200, "plain/plain")
        assert _content(raw)
    wait_until(lambda: not _readyz(gateway)["backends"]["spec"]["healthy"])
