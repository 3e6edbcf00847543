"""From a policy's backend to its adapter: nothing that the policy says is lost on the way."""

from __future__ import annotations

import pytest

from gateway.backends.http import HttpBackend
from gateway.backends.make import ADAPTERS, make_backend
from gateway.backends.pool import ReplicaPool
from gateway.policy import parse_policy

TEXT = """version: 1
backends:
  b:
    kind: KIND
    url: http://h:1
    model: m-1
    arms: [eagle-k3]
    api_key: ${BREAKEVEN_T}
    connect_timeout: 3s
    first_token_timeout: 7s
    token_timeout: 9s
    max_connections: 5
"""


def made(text: str, **replaced: str) -> object:
    (config,) = parse_policy(text, "p", env={"BREAKEVEN_T": "secret", **replaced}).backends
    return make_backend(config, token="ours", keepalive=4.0, poll=0.5, secret=b"s")


@pytest.mark.parametrize("kind", sorted(ADAPTERS))
async def test_everything_that_a_policy_says_of_a_server_reaches_its_adapter(kind: str):
    backend = made(TEXT.replace("KIND", kind))
    assert isinstance(backend, HttpBackend)
    assert type(backend) is ADAPTERS[kind]  # type: ignore[index]
    target = backend.target
    assert (backend.name, target.url, target.model, [str(arm) for arm in target.arms]) == (
        "b", "http://h:1", "m-1", ["b/eagle-k3"],
    )  # fmt: skip
    assert (target.token, target.connection_limit) == ("secret", 5)
    waits = target.timeouts
    assert (waits.connect, waits.first_token, waits.between_tokens, waits.keepalive, waits.poll) == (3, 7, 9, 4, 0.5)
    assert (backend.client._slots is not None and backend.client._slots._value) == 5
    assert "authorization: Bearer secret" in backend.client._fixed


async def test_our_engines_get_our_token_where_the_policy_names_none():
    text = TEXT.replace("    api_key: ${BREAKEVEN_T}\n", "")
    assert made(text.replace("KIND", "engine")).target.token == "ours"  # type: ignore[attr-defined]
    assert made(text.replace("KIND", "vllm")).target.token == ""  # type: ignore[attr-defined]


async def test_several_urls_make_a_pool():
    pool = made(TEXT.replace("KIND", "vllm").replace("url: http://h:1", "urls: [http://h:1, http://h:2]"))
    assert isinstance(pool, ReplicaPool)
