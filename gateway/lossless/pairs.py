"""Audits arms against the plain arm of the same model with a set of greedy prompts. For `breakeven backends check`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from gateway.backends.base import Backend
from gateway.errors import BreakevenError, UpstreamError
from gateway.lossless.compare import TIE, TIE_FLOAT32, Answer, Verdict, parting
from gateway.lossless.replay import judged, replay
from gateway.types import Arm, GenerateRequest, Identity

Messages = list[dict[str, Any]]


class Parted(msgspec.Struct):
    """One prompt whose answers are not equal."""

    prompt: int
    """Number in the set, from 0."""
    verdict: Verdict


class PairResult(msgspec.Struct):
    """One speculative arm against a plain one."""

    plain: str
    arm: str
    compared: int = 0
    equal: int = 0
    near_tie: int = 0
    different: int = 0
    unexplained: int = 0
    failed: int = 0
    error: str = ""
    """Of the last prompt that failed."""
    parted: list[Parted] = msgspec.field(default_factory=list)
    acceptance: str = ""
    """`reported`, `estimated` (from the server's totals), `tokens only` or `none`."""
    accepted: int = 0
    drafted: int = 0
    tie: float = TIE
    """Gap up to which two tokens count as tied."""

    @property
    def ok(self) -> bool:
        """Whether nothing was found that rounding does not explain, and everything was answered."""
        return not (self.different or self.failed) and self.compared > 0


def pairs_of(backends: Mapping[str, Backend]) -> list[tuple[Arm, Arm]]:
    """Return (plain, speculative) of each speculative arm: plain of the same server, else of one with its model."""
    states = [backend.state() for backend in backends.values() if backend.state().healthy]
    plains = {(state.name, state.model): arm for state in states for arm in state.arms if arm.k == 0}
    found = []
    for state in states:
        anywhere = next((arm for (_, model), arm in plains.items() if model == state.model), None)
        plain = plains.get((state.name, state.model), anywhere)
        found += [(plain, arm) for arm in state.arms if arm.k and plain is not None]
    return found


async def audit_pairs(
    backends: Mapping[str, Backend],
    prompts: Sequence[Messages],
    *,
    max_tokens: int,
    dtypes: Mapping[str, str],
    progress: Callable[[str], None] = lambda _: None,
) -> list[PairResult]:
    """Send each prompt on both arms of each pair; `dtypes` says in which precision a backend computes, where known."""
    plain_answers: dict[tuple[Arm, int], Answer | str] = {}
    results = []
    for plain, arm in pairs_of(backends):
        known = {dtypes.get(plain.backend, ""), dtypes.get(arm.backend, "")}
        result = PairResult(str(plain), str(arm), tie=TIE_FLOAT32 if known == {"float32"} else TIE)
        for number, messages in enumerate(prompts):
            progress(f"{arm} against {plain}: prompt {number + 1} of {len(prompts)}")
            request = _request(backends[plain.backend], messages, max_tokens)
            if (plain, number) not in plain_answers:
                plain_answers[plain, number] = await _tried(backends[plain.backend], request, plain)
            await _compare(backends, request, (plain, plain_answers[plain, number]), arm, result)
        results.append(result)
    return results


async def _compare(
    backends: Mapping[str, Backend],
    request: GenerateRequest,
    plain: tuple[Arm, Answer | str],
    arm: Arm,
    result: PairResult,
) -> None:
    base, answer = plain
    other = await _tried(backends[arm.backend], request, arm)
    if isinstance(answer, str) or isinstance(other, str):
        result.failed += 1
        result.error = answer if isinstance(answer, str) else str(other)
        return
    try:
        verdict = await judged(backends, request, plain=(base, answer), other=other, tie=result.tie)
    except BreakevenError:
        verdict = parting(answer, other) or Verdict("equal")  # log-probabilities were refused
    result.compared += 1
    setattr(result, verdict.outcome, getattr(result, verdict.outcome) + 1)
    if verdict.outcome != "equal":
        result.parted.append(Parted(result.compared + result.failed - 1, verdict))
    _note_acceptance(other, result)


def _note_acceptance(answer: Answer, result: PairResult) -> None:
    spec = answer.spec
    if spec is None or (not (spec.rounds or spec.drafted) and spec.undrafted is None):  # a time at most
        result.acceptance = result.acceptance or "none"
        return
    kind = "reported" if not spec.estimated else "estimated" if spec.rounds else "tokens only"
    result.acceptance = kind
    result.accepted += spec.accepted
    result.drafted += spec.drafted


async def _tried(backend: Backend, request: GenerateRequest, arm: Arm) -> Answer | str:
    """Return an answer, or why there is none."""
    try:
        return await replay(backend, request, arm)
    except UpstreamError as error:
        return f"{arm} answered {error.status}: {error.body[:200].decode('utf-8', 'replace')}"
    except BreakevenError as error:
        return f"{arm}: {error}"


def _request(backend: Backend, messages: Messages, max_tokens: int) -> GenerateRequest:
    model = backend.state().model
    body = {"model": model, "messages": messages, "temperature": 0, "max_tokens": max_tokens}
    return GenerateRequest(
        request_id="check",
        endpoint="chat",
        body=body,
        model=model,
        stream=False,
        include_usage=False,
        identity=Identity("check", "check", "operator", True),
        arrived=time.perf_counter(),
        arrived_at=time.time(),
        temperature=0.0,
        max_tokens=max_tokens,
    )
