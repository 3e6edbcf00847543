"""`/healthz` (the process lives), `/readyz` (an arm can answer; store faults are details), `/metrics`. No key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec
from litestar import Controller, Response, get

from gateway.access import Access
from gateway.api.given import Given
from gateway.types import BackendState


class Health(Protocol):
    """What readiness is told from (`gateway.app`)."""

    def states(self) -> list[BackendState]:
        """Return the state of every backend."""
        ...

    def store_states(self) -> dict[str, Any]:
        """Return what the stores say, by name."""
        ...

    def policy_state(self) -> dict[str, Any]:
        """Return which policy is active and what is wrong with the newest file, if anything."""
        ...


class BackendHealth(msgspec.Struct):
    """One backend in the details."""

    healthy: bool
    detail: str
    model: str
    arms: list[str]
    running: int
    waiting: int
    epoch: str


class Readiness(msgspec.Struct):
    """The answer of `/readyz`."""

    ready: bool
    backends: dict[str, BackendHealth]
    stores: dict[str, Any]
    policy: dict[str, Any]
    keys: str
    """`current`, or why the API keys in memory may be out of date."""


def readiness(health: Health, access: Access) -> Readiness:
    """Collect the details."""
    backends = {
        state.name: BackendHealth(
            state.healthy,
            state.detail,
            state.model,
            [str(arm) for arm in state.arms],
            state.running,
            state.waiting,
            state.epoch,
        )
        for state in health.states()
    }
    ready = any(state.healthy for state in backends.values())
    return Readiness(ready, backends, health.store_states(), health.policy_state(), access.error or "current")


class HealthController(Controller):
    """The three endpoints."""

    path = "/"

    @get("/healthz", sync_to_thread=False)
    def healthz(self) -> dict[str, str]:
        """Tell that the process lives."""
        return {"status": "ok"}

    @get("/readyz", sync_to_thread=False)
    def readyz(self, health: Given[Health], access: Given[Access]) -> Response[Readiness]:
        """Answer 200 once an arm can answer, else 503, with details in both cases."""
        found = readiness(health, access)
        return Response(found, status_code=200 if found.ready else 503)

    @get("/metrics", media_type="text/plain; version=0.0.4; charset=utf-8", sync_to_thread=False)
    def metrics(self, page: Given[Callable[[], bytes]]) -> bytes:
        """Show Prometheus metrics."""
        return page()
