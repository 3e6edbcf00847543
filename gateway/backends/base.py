"""The seam between the gateway and whatever decodes: two small protocols, implemented by the adapters beside it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any, Protocol

from engine.messages import CostTable
from gateway.types import Arm, BackendState, Decision, GenerateRequest, Spec


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Patience with one backend, seconds."""

    connect: float = 2.0
    first_token: float = 300.0
    """Until the first byte of the answer."""
    between_tokens: float = 60.0
    keepalive: float = 4.0
    """Shorter than any server's (uvicorn and vLLM close idle connections at 5 s)."""
    poll: float = 1.0
    """Between two looks at health, load and costs."""


@dataclass(frozen=True, slots=True)
class Target:
    """Which server an adapter speaks to, and how."""

    name: str
    url: str
    model: str = ""
    """The model's name there; empty: its only one."""
    arms: tuple[Arm, ...] = ()
    """Empty: all that it can serve."""
    token: str = ""
    timeouts: Timeouts = field(default_factory=Timeouts)
    connection_limit: int = 0
    """0: none."""
    secret: bytes = b""
    """Key of the hashes that keep tenants apart."""

    def cache_salt(self, key_id: str) -> str:
        """Return what a backend keeps prefix caches of different keys apart by: nobody can time another's."""
        return hashlib.blake2b(key_id.encode(), key=self.secret[:64], digest_size=12).hexdigest()


class Upstream(Protocol):
    """One answer being received. Closing it before its end aborts the work at the backend."""

    async def read(self) -> bytes:
        """Return the whole body. Raises BackendUnreachable when the connection is lost or patience ends."""
        ...

    async def chunk(self) -> bytes:
        """Return the next bytes of a stream, b"" at its end. Raises BackendUnreachable like `read`."""
        ...

    @property
    def finished(self) -> bool:
        """Whether everything has arrived and was taken: the next `chunk` would return b"" at once."""
        ...

    def spec(self, payload: dict[str, Any]) -> Spec | None:
        """Read acceptance and cost from the response, or from the last chunk of a stream that carried usage."""
        ...

    def close(self) -> None:
        """Give the connection up; idempotent, never awaits, so that it is safe in any `finally`."""
        ...


class Backend(Protocol):
    """One engine, or pool of engines, behind the gateway."""

    name: str

    async def start(self) -> None:
        """Begin to watch health, load and costs in the background; returns at once, reachable or not."""
        ...

    def state(self) -> BackendState:
        """Return what is known now, from memory."""
        ...

    async def open(self, request: GenerateRequest, decision: Decision) -> Upstream:
        """Send a request and return its answer as soon as the status line is there.

        Raises:
            UpstreamError: the backend answered with an HTTP error.
            BackendUnreachable: it did not answer.
        """
        ...

    def costs(self) -> CostTable | None:
        """Return the last measured costs, from memory; None where the backend reports none."""
        ...

    def untold_load(self) -> int | None:
        """Return this gateway's requests in flight where the backend tells no load itself, else None."""
        ...

    def hear_load(self, others: int) -> None:
        """Take the other gateways' requests in flight; ignored where the backend tells its load itself."""
        ...

    async def aclose(self) -> None:
        """Stop watching and close all connections."""
        ...
