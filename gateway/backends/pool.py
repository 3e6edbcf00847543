"""Several equal servers behind one arm: sticky by conversation, else the least loaded; retried before the first byte.

Made by `make.py` where a policy's backend names more than one URL. Each replica is an adapter of its own, with its own
health, connections and load.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from hashlib import blake2b

import msgspec

from engine.messages import CostTable
from gateway.backends.base import Upstream
from gateway.backends.ejection import Ejector
from gateway.backends.http import HttpBackend
from gateway.epochs import joint
from gateway.errors import BackendUnreachable, UpstreamError
from gateway.types import Arm, BackendState, Decision, GenerateRequest

SLACK = 2
"""Sequences by which a conversation's replica may be busier than the idlest one before its prefix cache is given up."""
_PREFIX = 1024
_OVERLOADED = frozenset({429, 502, 503, 504})
log = logging.getLogger(__name__)


class ReplicaPool:
    """A backend of several servers."""

    def __init__(self, name: str, replicas: Sequence[HttpBackend]) -> None:
        self.name = name
        self._replicas = tuple(replicas)
        self._ejector = Ejector(len(self._replicas))

    @property
    def in_flight(self) -> int:
        """Requests of this gateway that are running there."""
        return sum(replica.in_flight for replica in self._replicas)

    async def start(self) -> None:
        """Begin to watch every replica."""
        for replica in self._replicas:
            await replica.start()

    async def aclose(self) -> None:
        """Stop watching, close connections."""
        for replica in self._replicas:
            await replica.aclose()

    def costs(self) -> CostTable | None:
        """Return the costs of the first replica that reports some: they are equal machines."""
        tables = (replica.costs() for replica in self._replicas)
        return next((table for table in tables if table is not None), None)

    def state(self) -> BackendState:
        """Return the state of the pool: healthy while one replica is, load per replica, arms that all of them serve.

        Its epoch changes when that of any replica does, so that statistics never mix process starts.
        """
        states = [replica.state() for replica in self._replicas]
        up = [state for state in states if state.healthy]
        shown = (up or states)[0]
        windows = [state.max_model_len for state in up if state.max_model_len is not None]
        return msgspec.structs.replace(
            shown,
            name=self.name,
            healthy=bool(up),
            arms=_common([state.arms for state in up or states]),
            max_model_len=min(windows) if windows else None,
            epoch=joint([state.epoch for state in states]),
            running=_mean([state.running for state in up]),
            waiting=_mean([state.waiting for state in up]),
            warming=any(state.warming for state in up),
            kv_used=_share([state.kv_used for state in up]),
            detail="; ".join(filter(None, (self._down(states), self._ejected()))),
        )

    def _down(self, states: list[BackendState]) -> str:
        why = [state.detail for state in states if not state.healthy and state.detail]
        count = sum(not state.healthy for state in states)
        return f"{count} of {len(states)} replicas down: {'; '.join(why)}" if why else ""

    def _ejected(self) -> str:
        out = [replica.client.url for replica in self._replicas if self._ejector.out(id(replica))]
        return f"left out for failing requests: {', '.join(out)}" if out else ""

    async def open(self, request: GenerateRequest, decision: Decision) -> Upstream:
        """Send a request to the best replica; where it gives no answer, to the next.

        Raises:
            UpstreamError: a replica refused the request, or all are overloaded.
            BackendUnreachable: none answered.
        """
        failure: BackendUnreachable | UpstreamError = BackendUnreachable(f"no replica of {self.name} is up")
        for replica in self._in_order(request):
            try:
                upstream = await replica.open(request, decision)
            except BackendUnreachable as error:
                self._failed(replica, str(error))
                failure = error
            except UpstreamError as error:
                if error.status >= 500:
                    self._failed(replica, f"HTTP {error.status}")
                if error.status not in _OVERLOADED:
                    raise
                failure = error
            else:
                self._ejector.served(id(replica))
                return upstream
        raise failure

    def _failed(self, replica: HttpBackend, why: str) -> None:
        if self._ejector.failed(id(replica)):
            log.warning("pool %s: %s is left out for a while (%s)", self.name, replica.client.url, why)

    def _in_order(self, request: GenerateRequest) -> list[HttpBackend]:
        """Return the healthy replicas, the one to take first; those left out come last, for when no other answers."""
        up = [replica for replica in self._replicas if replica.healthy]
        if len(up) < 2:
            return up
        load = {id(replica): replica.in_flight + replica.running_seen + replica.waiting for replica in up}
        place = _place_of(request)
        up.sort(key=lambda replica: blake2b(f"{place}|{replica.client.url}".encode(), digest_size=8).digest())
        idlest = min(load.values())
        return sorted(
            up, key=lambda replica: (self._ejector.out(id(replica)), max(0, load[id(replica)] - idlest - SLACK))
        )


def _place_of(request: GenerateRequest) -> str:
    """Return what a conversation's requests have in common: its key, else how the body begins."""
    named = request.body.get("prompt_cache_key")
    start = named.encode("utf-8", "replace") if isinstance(named, str) and named else request.raw[:_PREFIX]
    return f"{request.identity.key_id}|{start.hex()}"


def _common(arms: list[tuple[Arm, ...]]) -> tuple[Arm, ...]:
    return tuple(arm for arm in arms[0] if all(arm in others for others in arms))


def _share(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _mean(values: list[int]) -> int:
    return -(-sum(values) // len(values)) if values else 0
