"""Audits a share of live greedy requests (a rule's `audit`): replayed on the other path once nobody is kept waiting.

Fed by `gateway.serve` when an answer is complete; one replay at a time, off the path of every request. What is found
goes to the database and the metrics: never text, only where two answers part. Nothing is waited for, nothing raises.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter, deque
from hashlib import blake2b
from typing import Protocol

import msgspec

from gateway.db import AuditResult
from gateway.errors import BreakevenError
from gateway.lossless.compare import Answer, Verdict
from gateway.lossless.replay import judged, replay
from gateway.lossless.served import Served
from gateway.routing.vetoes import veto
from gateway.types import Arm, BackendState

log = logging.getLogger(__name__)
QUEUE = 16
"""Requests that may wait for their audit; further ones are skipped and counted."""
MOST_BYTES = 16 << 20
"""What the bodies of those may come to together: a body may be as large as 32 MiB."""
QUIET = 4
"""A backend with so many sequences running, or any waiting, is left alone."""
PATIENCE_S = 60.0
"""A request waits so long for a quiet moment, then it is skipped."""
_LOOK_S = 0.5
_UNWRITTEN = 1000


class Results(Protocol):
    """Where results are kept (`gateway.db.Database`)."""

    async def insert_audits(self, results: list[AuditResult]) -> None:
        """Keep results. Raises StoreUnavailable."""
        ...


class AuditState(msgspec.Struct):
    """Counters since the start, for `/readyz`."""

    ok: bool
    detail: str
    audited: int
    queued: int
    skipped: int
    """Not audited: no quiet moment, a full queue, or no other arm."""


class Auditor:
    """One per gateway process."""

    def __init__(self, results: Results) -> None:
        self._results = results
        self._queue: deque[Served] = deque()
        self._unwritten: deque[AuditResult] = deque(maxlen=_UNWRITTEN)
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._error = ""
        self._skipped = 0
        self.counts: Counter[tuple[str, str]] = Counter()
        """By speculative arm and outcome."""

    def submit(self, served: Served) -> None:
        """Take an answer; one that finds the queue full, or is too large for what is left of it, is skipped."""
        waiting = sum(len(one.request.raw) for one in self._queue)
        if len(self._queue) >= QUEUE or waiting + len(served.request.raw) > MOST_BYTES:
            self._skipped += 1
            return
        self._queue.append(served)
        self._wake.set()

    async def start(self) -> None:
        """Begin to audit."""
        self._task = asyncio.create_task(self._work(), name="auditor")

    async def aclose(self) -> None:
        """Stop at once; what is queued is given up."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def state(self) -> AuditState:
        """Return the counters."""
        audited = sum(self.counts.values())
        return AuditState(not self._error, self._error, audited, len(self._queue), self._skipped)

    async def _work(self) -> None:
        while True:
            if not self._queue:
                self._wake.clear()
                await self._wake.wait()
            served = self._queue.popleft()
            try:
                await self._audit(served)
                await self._write()
            except Exception as error:  # an audit must never end the auditor; messages may quote a prompt
                log.error("audit of request %s: %s", served.request.request_id, type(error).__name__)

    async def _audit(self, served: Served) -> None:
        other = other_arm(served)
        gathered = served.tap.choices()
        if served.tap.truncated or other is None or not await self._quiet(served, other.backend):
            self._skipped += 1
            return
        plain, spec = (served.arm, other) if served.arm.k == 0 else (other, served.arm)
        answer = Answer(gathered[0] if gathered else {}, served.finish_reason)
        try:
            verdict = await self._compared(served, answer, other)
        except BreakevenError as error:
            log.warning("audit of %s against %s failed: %s", served.arm, other, type(error).__name__)
            verdict = None
        self._note(served, plain, spec, verdict)

    async def _compared(self, served: Served, answer: Answer, other: Arm) -> Verdict:
        theirs = await replay(served.backends[other.backend], served.request, other)
        if served.arm.k == 0:
            return await judged(served.backends, served.request, plain=(served.arm, answer), other=theirs)
        return await judged(served.backends, served.request, plain=(other, theirs), other=answer)

    def _note(self, served: Served, plain: Arm, spec: Arm, verdict: Verdict | None) -> None:
        outcome = verdict.outcome if verdict else "failed"
        self.counts[str(spec), outcome] += 1
        if outcome == "different":
            log.warning("answers differ: %s against %s, request %s", spec, plain, served.request.request_id)
        found = verdict or Verdict("equal")
        self._unwritten.append(
            AuditResult(
                request_id=served.request.record_id or served.request.request_id,
                at=served.request.arrived_at,
                task=served.task,
                rule=served.rule.name,
                policy=served.policy,
                plain_arm=str(plain),
                spec_arm=str(spec),
                served=served.arm.path,
                outcome=outcome,
                field=found.field,
                position=found.position,
                token=found.token,
                gap=found.gap,
            )
        )

    async def _write(self) -> None:
        """Write what is known; it waits in memory while the database is away."""
        batch = list(self._unwritten)
        try:
            await self._results.insert_audits(batch)
        except BreakevenError as error:
            self._error = str(error)
            return
        self._error = ""
        for _ in batch:
            self._unwritten.popleft()

    async def _quiet(self, served: Served, backend: str) -> bool:
        """Wait for a moment at which a replay keeps nobody waiting; False where none comes."""
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            state = served.backends[backend].state()
            if state.healthy and state.waiting == 0 and state.running < QUIET:
                return True
            await asyncio.sleep(_LOOK_S)
        return False


def other_arm(served: Served) -> Arm | None:
    """Return the arm to compare with: the other path, among the arms that the rule lists, of the same model.

    The plain arm is that of the same backend where it has one; speculative arms take turns by a hash of the request.
    """
    request, arm = served.request, served.arm
    states = [backend.state() for backend in served.backends.values()]
    same = [state for state in states if state.model == request.model]
    able = [one for state in same for one in state.arms if _may(served, one, state) and (one.k == 0) != (arm.k == 0)]
    if not able:
        return None
    here = [one for one in able if one.backend == arm.backend] or able
    digest = blake2b(request.request_id.encode("utf-8", "replace"), digest_size=4).digest()
    return here[int.from_bytes(digest, "big") % len(here)]


def _may(served: Served, arm: Arm, state: BackendState) -> bool:
    return served.rule.lists(arm) and veto(arm, state, served.request, served.prompt_tokens) is None
