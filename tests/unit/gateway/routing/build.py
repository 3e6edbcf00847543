"""Makers of requests, records and snapshots for the routing tests."""

from __future__ import annotations

import random

from engine.messages import CostCell, CostTable
from gateway.policy.schema import Rule
from gateway.routing import Bucket, Snapshot, build_snapshot, observe
from gateway.types import (
    Arm,
    BackendState,
    Classification,
    Decision,
    GenerateRequest,
    Identity,
    RequestRecord,
    Spec,
)

ARMS = (Arm("engine"), *(Arm("engine", "ngram", k) for k in (2, 4, 8)))
NOW = 6_000_000.0


def identity(may_force: bool = True) -> Identity:
    return Identity("k", "k", "app", may_force)


def request(**changes: object) -> GenerateRequest:
    fields: dict[str, object] = {
        "request_id": "r1",
        "endpoint": "chat",
        "body": {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
        "model": "m",
        "stream": False,
        "include_usage": False,
        "identity": identity(),
        "arrived": 0.0,
        "arrived_at": NOW,
        "temperature": 0.0,
        "max_tokens": 64,
    }
    return GenerateRequest(**(fields | changes))  # type: ignore[arg-type]


def backend(name: str = "engine", arms: tuple[Arm, ...] = ARMS, **changes: object) -> BackendState:
    fields: dict[str, object] = {
        "name": name,
        "kind": "engine",
        "healthy": True,
        "arms": arms,
        "model": "m",
        "max_model_len": 2048,
        "epoch": "e1",
        "has_tool_template": True,
        "per_request_stats": True,
        "per_request_switch": True,
        "adaptive": False,
        "running": 0,
    }
    return BackendState(**(fields | changes))  # type: ignore[arg-type]


def task(name: str = "code") -> Classification:
    return Classification(name, 1.0, "declared")


def rule(**changes: object) -> Rule:
    return Rule(**({"name": "default", "holdout": 0.0, "probe": 0.1} | changes))  # type: ignore[arg-type]


def costs(
    alpha: float = 0.05, beta: float = 0.05, method: str = "ngram", lengths: tuple[int, ...] = (2, 4, 8)
) -> CostTable:
    """α and β per draft token at every load and context."""
    plain = 0.01
    return CostTable(
        [
            CostCell(batch, context, k, method, alpha * k * plain, (1 + beta * k) * plain, plain, 50)
            for batch in (1, 8, 64)
            for context in (0, 2048)
            for k in lengths
        ]
    )


def steps(rng: random.Random, p: float, k: int, tokens: int) -> tuple[list[int], list[int]]:
    """Return emitted and drafted of a request whose draft tokens are accepted with probability p each."""
    emitted: list[int] = []
    while (left := tokens - sum(emitted)) > 0:
        accepted = 0
        while accepted < k and rng.random() < p:
            accepted += 1
        emitted.append(min(left, accepted + 1))
    return emitted, [k] * len(emitted)


def record(arm: Arm, emitted: list[int], drafted: list[int], **changes: object) -> RequestRecord:
    tokens = sum(emitted)
    rounds = sum(1 for d in drafted if d)
    accepted = sum(e - 1 for e, d in zip(emitted, drafted, strict=True) if d)
    histogram = [0] * (arm.k + 1)
    for e, d in zip(emitted, drafted, strict=True):
        if d:
            histogram[e - 1] += 1
    decision = Decision(arm, "", "ok", "default", "p", numbers={"offered": [2, 4, 8]}, load=1)
    spec = Spec(
        rounds, sum(drafted), accepted, histogram, len(drafted) - rounds, step_emitted=emitted, step_drafted=drafted
    )
    fields: dict[str, object] = {
        "request_id": "r1",
        "at": NOW,
        "endpoint": "chat",
        "model": "m",
        "key_id": "k",
        "task": "code",
        "confidence": 1.0,
        "source": "declared",
        "arm": arm,
        "epoch": "e1",
        "decision": decision,
        "stream": False,
        "temperature": 0.0,
        "status": 200,
        "error_code": None,
        "finish_reason": "stop",
        "prompt_tokens": 50,
        "completion_tokens": tokens + 1,
        "cached_tokens": 0,
        "overhead_s": 0.001,
        "ttft_s": 0.05,
        "tpot_s": 0.01,
        "e2e_s": 1.0,
        "itl_s": [],
        "spec": spec if arm.k else None,
    }
    return RequestRecord(**(fields | changes))  # type: ignore[arg-type]


def buckets_of(records: list[RequestRecord]) -> list[Bucket]:
    return [Bucket(int(r.at // 60), key, counters) for r in records for key, counters in observe(r)]


def learned(p: float, *, k: int = 8, n: int = 60, table: CostTable | None = None, name: str = "code") -> Snapshot:
    """A snapshot after n requests at k whose tokens are accepted with probability p."""
    rng = random.Random(7)
    records = [record(Arm("engine", "ngram", k), *steps(rng, p, k, 60), task=name) for _ in range(n)]
    return build_snapshot(buckets_of(records), {"engine": table or costs()}, now=NOW, arms={"engine": ARMS})
