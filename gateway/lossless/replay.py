"""Sends a request once more, whole and on a given arm, and puts the answer together. Used by `auditor` and `pairs`.

Past classification, decision, limits and records: a replay is nobody's request and leaves no statistics.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

import msgspec

from engine.messages import Speculation
from gateway.backends import Backend
from gateway.errors import BackendUnreachable
from gateway.lossless.compare import TIE, Answer, Verdict, answer_of, explained, parting
from gateway.types import Arm, Decision, GenerateRequest

LONGEST_S = 300.0
"""A replay may take so long."""
_DROPPED = frozenset({"stream", "stream_options", "logprobs", "top_logprobs", "store", "speculation"})


async def replay(backend: Backend, request: GenerateRequest, arm: Arm, *, logprobs: bool = False) -> Answer:
    """Return the answer of one arm.

    Raises UpstreamError where the backend refuses the request, BackendUnreachable where it does not answer.
    """
    body = {name: value for name, value in request.body.items() if name not in _DROPPED}
    if logprobs:
        body |= {"logprobs": True, "top_logprobs": 2} if request.endpoint == "chat" else {"logprobs": 2}
    again = msgspec.structs.replace(
        request,
        request_id=f"audit-{request.request_id}"[:200],
        body=body,
        raw=b"",
        stream=False,
        include_usage=False,
        headers={},
        arrived=time.perf_counter(),
    )
    try:
        async with asyncio.timeout(LONGEST_S):
            return await _answered(backend, again, arm)
    except TimeoutError as error:
        raise BackendUnreachable(f"no answer from {arm} within {LONGEST_S:g} s") from error


async def _answered(backend: Backend, request: GenerateRequest, arm: Arm) -> Answer:
    told = Speculation(arm.method, arm.k) if backend.state().per_request_switch else None
    decision = Decision(arm, "losslessness audit", "audit", "", "", speculation=told)
    upstream = await backend.open(request, decision)
    try:
        payload = msgspec.json.decode(await upstream.read())
        if not isinstance(payload, dict):
            raise BackendUnreachable(f"{arm} sent no JSON object")
        answer = answer_of(payload)
        answer.spec = upstream.spec(payload)
        return answer
    except msgspec.DecodeError as error:
        raise BackendUnreachable(f"{arm} sent no JSON object: {error}") from error
    finally:
        upstream.close()


async def judged(
    backends: Mapping[str, Backend],
    request: GenerateRequest,
    *,
    plain: tuple[Arm, Answer],
    other: Answer,
    tie: float = TIE,
) -> Verdict:
    """Compare two answers; where they part, ask the plain arm for the log-probabilities there.

    Raises like `replay`.
    """
    arm, answer = plain
    verdict = parting(answer, other)
    if verdict is None:
        return Verdict("equal")
    if verdict.position is None:
        return verdict
    return explained(verdict, answer, await replay(backends[arm.backend], request, arm, logprobs=True), tie)
