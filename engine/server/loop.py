"""The step thread: the only one that calls `EngineCore.step`. Started and stopped by the service."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Protocol

from engine.errors import EngineDead
from engine.messages import CostTable
from engine.sequence import GenerateRequest, StepOutput

IDLE_GAP_S = 0.5
"""Idleness after which step costs are measured: pauses between the requests of one client are left alone."""

log = logging.getLogger(__name__)


class CoreStats(Protocol):
    """What the server reports of the core (`engine.core.CoreStats`)."""

    running: int
    waiting: int
    kv_tokens_used: int
    kv_tokens_total: int
    profiled: bool


class Core(Protocol):
    """What the server needs of `engine.core.EngineCore`."""

    @property
    def methods(self) -> list[str]:
        """Speculation methods that a request may ask for."""

    def add(self, request: GenerateRequest) -> None:
        """Queue a request; thread-safe. Raises QueueFull, RequestRejected."""

    def abort(self, request_id: str) -> None:
        """End a request; thread-safe, idempotent."""

    def has_work(self) -> bool:
        """Whether `step` would do anything."""

    def step(self) -> list[StepOutput]:
        """Advance; only from the step thread."""

    def profile_once(self) -> bool:
        """Time one pair of steps; False once there is nothing left to measure. Only from the step thread."""

    def costs(self) -> CostTable:
        """Measured step costs."""

    def stats(self) -> CoreStats:
        """Counts of this moment."""


class StepLoop:
    """Steps while there is work and sleeps otherwise. An exception out of `step` ends it for good."""

    def __init__(
        self, core: Core, deliver: Callable[[list[StepOutput]], None], died: Callable[[EngineDead], None]
    ) -> None:
        """`deliver` and `died` are called on the step thread and must not block."""
        self._core = core
        self._deliver = deliver
        self._died = died
        self._wake = threading.Event()
        self._stopping = False
        self._profiling = True
        self._thread = threading.Thread(target=self._run, name="step", daemon=True)
        self.dead: EngineDead | None = None

    def start(self) -> None:
        """Begin stepping."""
        self._thread.start()

    def stop(self, wait_s: float) -> None:
        """Ask the thread to end after its present step and wait for it."""
        self._stopping = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(wait_s)

    def add(self, request: GenerateRequest) -> None:
        """Queue a request. Raises EngineDead, QueueFull, RequestRejected."""
        if self.dead is not None:
            raise self.dead
        self._core.add(request)
        self._wake.set()

    def abort(self, request_id: str) -> None:
        """End a request wherever it is."""
        self._core.abort(request_id)
        self._wake.set()

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._wake.clear()  # before the look: an `add` in between sets it again
                if not self._core.has_work():
                    self._idle()
                    continue
                if outputs := self._core.step():
                    self._deliver(outputs)
        except Exception as error:
            log.exception("the step loop has ended")
            self.dead = EngineDead(f"the engine's step loop has ended: {type(error).__name__}: {error}")
            self._died(self.dead)

    def _idle(self) -> None:
        """Sleep until something arrives; a gap that lasts is used to measure step costs, a pair of steps at a time."""
        if not self._profiling:
            self._wake.wait()
        elif not self._wake.wait(IDLE_GAP_S):
            while self._profiling and not self._wake.is_set():
                self._profiling = self._core.profile_once()
