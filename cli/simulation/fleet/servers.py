"""Servers of one pool as they decode, in small steps of time: batching, queue, cache for keys and values.

A step of a server takes what the cost model says of its whole batch; every sequence moves on by one step of its own
trace. Sequences are admitted in order of arrival while slots and memory last; a prefill holds the whole batch up.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cli.simulation.costs import CostModel
from cli.simulation.replay import Steps
from gateway.types import Arm, Decision

Floats = NDArray[np.float64]


@dataclass(slots=True)
class Job:
    """One request on its way through a pool. Times are seconds of the simulated clock."""

    number: int
    """Of its trace."""
    arm: Arm
    prompt_tokens: int
    steps: Steps
    tokens: int
    arrived: float
    gateway: int = 0
    decision: Decision | None = None
    """None where a fixed choice was made."""
    started: float = 0.0
    """When it was admitted."""
    first_token: float = 0.0
    finished: float = 0.0
    batch_seen: float = 0.0


@dataclass(slots=True)
class Load:
    """What a pool tells of itself: means over its servers."""

    running: int
    waiting: int
    kv_used: float


@dataclass(slots=True)
class Pool:
    """Equal servers; a request goes to the one with the fewest sequences."""

    costs: CostModel
    servers: int
    slots: int
    kv_tokens: int
    jobs: list[list[Job | None]] = field(init=False)
    queues: list[deque[Job]] = field(init=False)
    left: Floats = field(init=False)
    width: Floats = field(init=False)
    drafts: Floats = field(init=False)
    kv: Floats = field(init=False)
    pace: Floats = field(init=False)
    held: Floats = field(init=False)
    reserved: Floats = field(init=False)

    def __post_init__(self) -> None:
        shape = (self.servers, self.slots)
        self.jobs = [[None] * self.slots for _ in range(self.servers)]
        self.queues = [deque() for _ in range(self.servers)]
        self.left = np.full(shape, np.inf)  # steps still to go; infinite: an empty slot
        self.width, self.drafts, self.kv, self.pace = (np.zeros(shape) for _ in range(4))
        self.held = np.zeros(self.servers)  # seconds of prefill ahead
        self.reserved = np.zeros(self.servers)  # tokens of cache spoken for

    @property
    def busy(self) -> bool:
        """Whether anything is decoding or waiting."""
        return any(self.queues) or bool(np.isfinite(self.left).any())

    def add(self, job: Job) -> None:
        """Queue a request at the server with the fewest sequences."""
        busy = np.isfinite(self.left).sum(axis=1) + [len(queue) for queue in self.queues]
        self.queues[int(np.argmin(busy))].append(job)

    def load(self) -> Load:
        """Return running and waiting sequences and the cache in use, per server."""
        running = int(np.isfinite(self.left).sum())
        waiting = sum(map(len, self.queues))
        return Load(
            -(-running // self.servers),
            -(-waiting // self.servers),
            float(self.reserved.mean()) / self.kv_tokens,
        )

    def tick(self, now: float, dt: float) -> list[Job]:
        """Decode from `now` to `now + dt`; return what has finished."""
        for server, queue in enumerate(self.queues):
            if queue:
                self._admit(server, queue, now)
        active = np.isfinite(self.left)
        if not active.any():
            self.held[:] = 0.0
            return []
        seconds = self._step_seconds(active)
        time_left = np.maximum(0.0, dt - self.held)
        self.held = np.maximum(0.0, self.held - dt)
        moved = np.where(active, (time_left / seconds)[:, None], 0.0)
        self.left -= moved
        self.kv += moved * self.pace
        done = active & (self.left <= 0)
        return [self._finish(int(s), int(i), now + dt, float(seconds[s])) for s, i in np.argwhere(done)]

    def _step_seconds(self, active: NDArray[np.bool_]) -> Floats:
        """Return how long a step of each server's batch takes."""
        verify, draft = self.costs.verify, self.costs.draft
        width, kv = np.where(active, self.width, 0.0), np.where(active, self.kv, 0.0)
        drafting = np.where(active, self.drafts, 0.0)
        base = self.costs.overhead + verify.base + verify.per_k * width.sum(axis=1) + verify.per_kv * kv.sum(axis=1)
        drafted = draft.per_k * (width * drafting).max(axis=1) + draft.per_kv * (kv * drafting).sum(axis=1)
        seconds: Floats = base + drafted + draft.base * (drafting.max(axis=1) > 0)
        return seconds

    def _admit(self, server: int, queue: deque[Job], now: float) -> None:
        for slot in range(self.slots):
            if self.jobs[server][slot] is not None:
                continue
            needed = queue[0].prompt_tokens + queue[0].tokens + queue[0].arm.k
            if self.reserved[server] + needed > self.kv_tokens and self.reserved[server] > 0:
                return
            job = queue.popleft()
            self.reserved[server] += needed
            self.held[server] += self.costs.verify.per_k * job.prompt_tokens
            job.started = max(now, job.arrived)
            job.first_token = job.started + float(self.held[server])
            steps = job.steps.emitted
            self.jobs[server][slot] = job
            self.left[server, slot] = len(steps)
            self.width[server, slot] = 1.0 + sum(job.steps.drafted) / len(steps)
            self.drafts[server, slot] = 1.0 if job.arm.k else 0.0
            self.kv[server, slot], self.pace[server, slot] = job.prompt_tokens, job.tokens / len(steps)
            if not queue:
                return

    def _finish(self, server: int, slot: int, at: float, step_s: float) -> Job:
        job = self.jobs[server][slot]
        assert job is not None  # noqa: S101 - only taken slots have steps left
        job.finished = max(job.first_token, at + float(self.left[server, slot]) * step_s)
        job.batch_seen = float(np.isfinite(self.left[server]).sum())
        self.reserved[server] -= job.prompt_tokens + job.tokens + job.arm.k
        self.jobs[server][slot] = None
        self.left[server, slot] = np.inf
        return job
