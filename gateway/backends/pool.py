"""Several equal servers behind one arm: sticky by conversation, else the least loaded; retried before the first byte.

Made by `make.py` where a policy's backend names more than one URL. Each replica is an adapter of its own, with its own
health, connections and load.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from hashlib import blake2b
from typing import Any

import msgspec

from engine.messages import CostTable
from gateway.backends.base import Upstream
from gateway.backends.client import HttpUpstream
from gateway.backends.compare import Comparison, Sent
from gateway.backends.ejection import Ejector
from gateway.backends.http import HttpBackend
from gateway.bands import load_band
from gateway.epochs import joint
from gateway.errors import BackendUnreachable, UpstreamError
from gateway.types import Arm, BackendState, Decision, GenerateRequest, Spec

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
        self._comparison = Comparison()
        self._why: dict[HttpBackend, str] = {}
        """What a replica was left out for last."""

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

    def untold_load(self) -> int | None:
        """Return the requests in flight at replicas that tell no load; None where all do."""
        untold = [load for replica in self._replicas if (load := replica.untold_load()) is not None]
        return sum(untold) if untold else None

    def hear_load(self, others: int) -> None:
        """Take the other gateways' requests in flight: an equal share for each replica that tells no load itself."""
        silent = [replica for replica in self._replicas if replica.untold_load() is not None]
        for replica in silent:
            replica.hear_load(-(-others // len(silent)))

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
            detail="; ".join(filter(None, (self._down(states), *self._faults(states), *self._ejected()))),
        )

    def _down(self, states: list[BackendState]) -> str:
        why = [state.detail for state in states if not state.healthy and state.detail]
        count = sum(not state.healthy for state in states)
        return f"{count} of {len(states)} replicas down: {'; '.join(why)}" if why else ""

    def _faults(self, states: list[BackendState]) -> list[str]:
        pairs = zip(self._replicas, states, strict=True)
        return [f"{replica.client.url} {state.detail}" for replica, state in pairs if state.healthy and state.detail]

    def _ejected(self) -> list[str]:
        out = [replica for replica in self._replicas if self._ejector.out(replica)]
        return [f"left out {self._why[replica]}: {replica.client.url}" for replica in out]

    async def open(self, request: GenerateRequest, decision: Decision) -> Upstream:
        """Send a request to the best replica; where it gives no answer, to the next.

        Raises:
            UpstreamError: a replica refused the request, or all are overloaded.
            BackendUnreachable: none answered.

        Where only a replica without its draft answers, the decision becomes a fallback to the plain arm.
        """
        failure: BackendUnreachable | UpstreamError = BackendUnreachable(f"no replica of {self.name} is up")
        place = _place_of(request)
        for replica in self._in_order(place, decision.arm):
            load, which = load_band(1 + replica.in_flight + replica.running_seen), self._replicas.index(replica)
            sent = Sent(which, replica.epoch, hash(place), decision.arm, load)
            try:
                upstream = await self._begun(replica, request, decision)
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
                self._ejector.served(replica)
                if decision.arm.k and replica.draft_watch.speculates is False:
                    _went_plain(decision, Arm(self.name))
                elif not replica.warming:
                    upstream.on_spec = partial(self._compare, sent, upstream)
                return upstream
        raise failure

    async def _begun(self, replica: HttpBackend, request: GenerateRequest, decision: Decision) -> HttpUpstream:
        """Return an answer whose first bytes are there: until then another replica may still give it."""
        upstream = await replica.open(request, decision)
        try:
            await upstream.first(stream=request.stream)
        except BaseException:
            upstream.close()
            raise
        return upstream

    def _failed(self, replica: HttpBackend, why: str) -> None:
        if self._ejector.failed(replica):
            self._left_out(replica, "for failing requests", why)

    def _left_out(self, replica: HttpBackend, why: str, how: str) -> None:
        self._why[replica] = why
        log.warning("pool %s: %s is left out for a while %s (%s)", self.name, replica.client.url, why, how)

    def _compare(self, sent: Sent, upstream: HttpUpstream, payload: dict[str, Any], spec: Spec | None) -> None:
        """Compare an answer with those of the other replicas."""
        answer = sent.answered(upstream.took(), payload, spec, streamed=upstream.streamed)
        found = self._comparison.see(answer) if answer else []
        if self._replicas[sent.replica].draft_watch.dead:
            found.append((sent.replica, "for a dead draft"))
        for worse, what in found:
            replica = self._replicas[worse]
            if self._ejector.lags(replica):
                self._left_out(replica, what, "by its answers")
                self._comparison.forget(worse)

    def _in_order(self, place: str, arm: Arm) -> list[HttpBackend]:
        """Return the healthy replicas, the one to take first; those left out, or without the arm, come last."""
        up = [replica for replica in self._replicas if replica.healthy]
        if len(up) < 2:
            return up
        load = {replica: replica.in_flight + replica.running_seen + replica.waiting for replica in up}
        up.sort(key=lambda replica: blake2b(f"{place}|{replica.client.url}".encode(), digest_size=8).digest())
        idlest = min(load.values())
        return sorted(
            up,
            key=lambda replica: (
                self._ejector.out(replica) or arm not in replica.served_arms,
                self._ejector.out(replica),  # where none has the arm, as of one that only the client named
                max(0, load[replica] - idlest - SLACK),
            ),
        )


def _went_plain(decision: Decision, plain: Arm) -> None:
    """Note that a replica without a draft answered in place of one with: the speculative arm has not been taken."""
    decision.arm, decision.state = plain, "fallback"
    decision.reason = f"plain {plain}: fallback, the replica that answered does not speculate"


def _place_of(request: GenerateRequest) -> str:
    """Return what a conversation's requests have in common: its key, else how the body begins."""
    named = request.body.get("prompt_cache_key")
    start = named.encode("utf-8", "replace") if isinstance(named, str) and named else request.raw[:_PREFIX]
    return f"{request.identity.key_id}|{start.hex()}"


def _common(arms: list[tuple[Arm, ...]]) -> tuple[Arm, ...]:
    """Return the arms of all; those that do not speculate, as they should, count only where none does."""
    able = [some for some in arms if any(arm.k for arm in some)] or arms
    return tuple(arm for arm in able[0] if all(arm in others for others in able))


def _share(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _mean(values: list[int]) -> int:
    return -(-sum(values) // len(values)) if values else 0
