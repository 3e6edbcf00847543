"""Who runs in the next step: admission by KV budget, chunked prefill, fairness, pre-emption. Called by the core.

Torch-free. Tenants (cache keys) take turns at admission, each in its own order of arrival. A sequence gets KV for its
prompt when it is admitted and for its output as it grows; where the budget runs out, the youngest one steps back into
the queue and is computed again later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from engine.errors import QueueFull
from engine.sequence import Sequence

MAX_STALLS = 64
"""A waiting request that has been passed this often goes first."""
IDLE_CHUNKS = 4
"""Prefill takes this many chunks a step while nothing decodes."""


class Memory(Protocol):
    """What the scheduler must know of the KV cache (`engine.prefix_cache.KVMemory`)."""

    def admit(self, sequence: Sequence) -> bool:
        """Give the sequence KV for its tokens, reusing a kept prefix; False where there is no room now."""

    def reserve(self, sequence: Sequence, tokens: int) -> bool:
        """Make sure that its KV holds `tokens`; False where there is no room now."""

    def release(self, sequence: Sequence) -> None:
        """Take its KV back."""


@dataclass(slots=True)
class Plan:
    """One step: sequences that decode, and prompt chunks `(sequence, tokens)` beside them."""

    decodes: list[Sequence]
    prefills: list[tuple[Sequence, int]]

    def __bool__(self) -> bool:
        return bool(self.decodes or self.prefills)


class Scheduler:
    """Waiting and running sequences. Not thread-safe: the step thread owns it."""

    def __init__(self, memory: Memory, *, max_batch: int, max_waiting: int, prefill_chunk: int, max_k: int) -> None:
        self._memory = memory
        self._max_batch = max_batch
        self._max_waiting = max_waiting
        self._chunk = prefill_chunk
        self._max_k = max_k
        self._queues: dict[str, deque[Sequence]] = {}
        self._turn: deque[str] = deque()
        self.running: list[Sequence] = []
        self.preemptions = 0
        self._crowded = False
        """Set by a pre-emption until a running request ends: what stepped back must not return to be pushed out."""

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return sum(map(len, self._queues.values()))

    def check_room(self, waiting: int, retry_after_s: float) -> None:
        """Raise QueueFull where `waiting` requests are all that may wait."""
        if waiting >= self._max_waiting:
            raise QueueFull(f"{waiting} requests are waiting already", retry_after_s=retry_after_s)

    def add(self, sequence: Sequence, *, first: bool = False) -> None:
        """Queue a sequence, `first` in its tenant's queue where it has run before."""
        key = sequence.request.cache_key
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = deque()
            self._turn.append(key)
        if first:
            queue.appendleft(sequence)
        else:
            queue.append(sequence)

    def remove(self, wanted: Callable[[Sequence], bool]) -> list[Sequence]:
        """Take out and return all sequences that `wanted` names, waiting or running; their KV is released."""
        gone = [sequence for sequence in self.running if wanted(sequence)]
        for sequence in gone:
            self.finish(sequence)
        for key, queue in list(self._queues.items()):
            leaving = [sequence for sequence in queue if wanted(sequence)]
            for sequence in leaving:
                queue.remove(sequence)
            gone.extend(leaving)
            self._drop_if_empty(key)
        return gone

    def finish(self, sequence: Sequence) -> None:
        """Take a running sequence out and release its KV."""
        self._leave(sequence)
        self._crowded = False

    def _leave(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._memory.release(sequence)

    def schedule(self) -> Plan:
        """Choose the next step. Running sequences keep their place; prompts share what the chunk budget leaves."""
        self._make_room()
        self._admit()
        decodes = [sequence for sequence in self.running if sequence.num_uncomputed == 1]
        prompts = [sequence for sequence in self.running if sequence.num_uncomputed > 1]
        return Plan(decodes, list(self._chunks(prompts, self._chunk if decodes else self._chunk * IDLE_CHUNKS)))

    @staticmethod
    def _chunks(prompts: Iterable[Sequence], budget: int) -> Iterable[tuple[Sequence, int]]:
        for sequence in prompts:
            if budget <= 0:
                return
            take = min(sequence.num_uncomputed, budget)
            budget -= take
            yield sequence, take

    def _make_room(self) -> None:
        """Reserve KV for the next round of everyone, oldest first; the youngest steps back where there is none."""
        for sequence in list(self.running):
            if sequence not in self.running:
                continue
            need = len(sequence.tokens) + self._max_k
            while not self._memory.reserve(sequence, need):
                victim = self.running[-1]
                self._leave(victim)
                self.add(victim, first=True)
                self.preemptions += 1
                self._crowded = bool(self.running)
                if victim is sequence:
                    break

    def _admit(self) -> None:
        while self._turn and len(self.running) < self._max_batch and not self._crowded:
            key = self._next_tenant()
            sequence = self._queues[key][0]
            if not self._memory.admit(sequence):
                return
            self._queues[key].popleft()
            self.running.append(sequence)
            self._turn.remove(key)
            self._turn.append(key)
            self._drop_if_empty(key)
            for queue in self._queues.values():
                queue[0].stalled += queue[0].arrived < sequence.arrived

    def _next_tenant(self) -> str:
        """The tenant with the fewest running sequences; whoever was passed too often goes first."""
        for key in self._turn:
            if self._queues[key][0].stalled >= MAX_STALLS:
                return key
        running: dict[str, int] = {}
        for sequence in self.running:
            running[sequence.request.cache_key] = running.get(sequence.request.cache_key, 0) + 1
        return min(self._turn, key=lambda key: running.get(key, 0))

    def _drop_if_empty(self, key: str) -> None:
        if not self._queues[key]:
            del self._queues[key]
            self._turn.remove(key)
