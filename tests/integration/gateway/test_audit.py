"""A rule's `audit`: live greedy answers against those of the other path, off everybody's path, with what is kept."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gateway.db import AuditResult, AuditSums, Database
from tests.fixtures.servers import Scripted, completion, files_below, get, policy_text, request, wait_until

WORDS = "audited words of a client"


def pools(plain: Scripted, spec: Scripted, audit: str = "all") -> str:
    return f"""
version: 1
backends:
  plain: {{kind: vllm, url: "{plain.url}", arms: [plain]}}
  spec: {{kind: vllm, url: "{spec.url}", arms: [eagle-k3]}}
rules:
  - {{name: audited, probe: 0%, holdout: 0%, audit: {audit}}}
"""


def ask(url: str, **fields: Any) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": WORDS}], "temperature": 0, **fields}
    status, _, answer = request("POST", f"{url}/v1/chat/completions", body)
    assert status == 200, answer


def audits(url: str) -> dict[str, Any]:
    return get(f"{url}/readyz")[1]["stores"]["audits"]


def kept(tmp_path: Path) -> tuple[list[AuditSums], list[AuditResult]]:
    (found,) = tmp_path.glob("gateway-*/*.db")

    async def read() -> tuple[list[AuditSums], list[AuditResult]]:
        database = Database(f"sqlite:///{found}")
        try:
            return await database.audit_sums(0.0), await database.audit_findings(0.0)
        finally:
            await database.aclose()

    return asyncio.run(read())


def speaking(text: str, gap: float = 4.0):
    """A server that always says the same, with log-probabilities where asked."""

    async def handler(_: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        answer = completion(text)
        if body.get("logprobs"):
            tops = [{"token": "hello", "logprob": -0.01}, {"token": "hallo", "logprob": -0.01 - gap}]
            tokens = [{"token": text, "bytes": list(text.encode()), "logprob": -0.01, "top_logprobs": tops}]
            answer["choices"][0]["logprobs"] = {"content": tokens}
        return web.json_response(answer)

    return handler


@pytest.mark.parametrize(("gap", "outcome"), [(0.01, "near_tie"), (4.0, "different")])
def test_answers_that_part_are_kept_with_the_place_and_without_a_word(
    start_gateway, upstream, other_upstream, tmp_path, gap: float, outcome: str
):
    upstream.handler, other_upstream.handler = speaking("hello world", gap), speaking("hallo world", gap)
    gateway = start_gateway(pools(upstream, other_upstream))
    ask(gateway.url)
    wait_until(lambda: audits(gateway.url)["audited"] == 1)
    wait_until(lambda: bool(kept(tmp_path)[1]))
    (sums,), (finding,) = kept(tmp_path)
    assert (sums.arm, sums.audited, getattr(sums, outcome)) == ("spec/eagle-k3", 1, 1)
    assert sums.largest_gap == pytest.approx(gap)
    assert (finding.plain_arm, finding.served, finding.outcome) == ("plain/plain", "plain", outcome)
    assert (finding.field, finding.position, finding.token) == ("content", 1, 0)
    page = request("GET", f"{gateway.url}/metrics")[2].decode()
    assert f'breakeven_audits_total{{arm="spec/eagle-k3",outcome="{outcome}"}} 1.0' in page
    for path, content in files_below(tmp_path):
        assert b"audited words" not in content, path


def test_an_audit_is_nobodys_request(start_gateway, upstream, other_upstream):
    """One request goes out, one record comes in; the replay is whole, alone, and neither forced nor counted."""
    gateway = start_gateway(pools(upstream, other_upstream))
    ask(gateway.url, stream=True, logprobs=False)
    wait_until(lambda: audits(gateway.url)["audited"] == 1)
    assert len(gateway.records) == 1
    (sent,) = other_upstream.bodies
    assert not sent.get("stream")
    assert "logprobs" not in sent
    assert sent["messages"][0]["content"] == WORDS
    snapshot = get(f"{gateway.url}/v1/policy/snapshot")[1]
    assert {bucket["key"]["backend"] for bucket in snapshot["buckets"]} <= {"plain"}


@pytest.mark.parametrize(
    "fields", [{"temperature": 0.7}, {"n": 2}, {"logit_bias": {"1": 5}}], ids=["sampled", "two choices", "vetoed"]
)
def test_what_cannot_be_compared_is_not_sent_twice(start_gateway, upstream, other_upstream, fields):
    gateway = start_gateway(pools(upstream, other_upstream))
    ask(gateway.url, **fields)
    ask(gateway.url)
    wait_until(lambda: audits(gateway.url)["audited"] == 1)
    assert len(other_upstream.bodies) == 1


def test_a_busy_backend_is_left_alone_and_a_slow_replay_delays_nobody(start_gateway, upstream, other_upstream):
    held = asyncio.Event()

    async def slow(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
        await held.wait()
        return web.json_response(completion())

    other_upstream.handler = slow
    gateway = start_gateway(pools(upstream, other_upstream))
    for _ in range(25):  # each is answered although the replay never is
        ask(gateway.url)
    wait_until(lambda: len(other_upstream.bodies) == 1)
    wait_until(lambda: audits(gateway.url)["queued"] + audits(gateway.url)["skipped"] == 24)
    state = audits(gateway.url)
    assert (len(other_upstream.bodies), state["audited"]) == (1, 0)
    assert state["queued"] in (15, 16)


def test_without_audit_nothing_is_sent_twice(start_gateway, upstream, other_upstream):
    """Of two requests the second one comes under a rule that audits; audits are made one after another."""
    rule = "  - {name: not audited, when: {seed: set}, probe: 0%, holdout: 0%, audit: none}\n"
    gateway = start_gateway(pools(upstream, other_upstream).replace("rules:\n", f"rules:\n{rule}"))
    ask(gateway.url, seed=1)
    ask(gateway.url)
    wait_until(lambda: audits(gateway.url)["audited"] == 1)
    assert ["seed" in body for body in other_upstream.bodies] == [False]


@pytest.mark.slow
def test_the_engines_paths_give_the_same_answers(engine_url: str, start_gateway, tmp_path):
    text = policy_text(("engine", "engine", engine_url)).replace("holdout: 0%", "holdout: 0%\n    audit: all")
    gateway = start_gateway(text)
    model = json.loads(request("GET", f"{gateway.url}/v1/models")[2])["data"][0]["id"]
    paths = ["plain", "speculative", "plain", "speculative"]
    for at, path in enumerate(paths):
        body = {"model": model, "messages": [{"role": "user", "content": f"abc {at} abc abc abc"}], "temperature": 0}
        header = {"x-breakeven-path": path}
        status, headers, _ = request("POST", f"{gateway.url}/v1/chat/completions", body | {"max_tokens": 24}, header)
        assert (status, headers["x-breakeven-path"]) == (200, path)
    wait_until(lambda: audits(gateway.url)["audited"] == len(paths))
    wait_until(lambda: sum(sums.audited for sums in kept(tmp_path)[0]) == len(paths))
    sums, findings = kept(tmp_path)
    assert sum(each.equal for each in sums) == len(paths)
    assert findings == []
