"""One gateway of the fleet: the live snapshot and decision over statistics and load that are up to a second old."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from cli.simulation.fleet.servers import Load
from cli.simulation.router import EPOCH, request_stub, state_stub
from engine.messages import CostTable
from gateway.policy.schema import Rule
from gateway.routing import Bucket, Snapshot, Tuning, build_snapshot, decide
from gateway.types import Arm, BackendState, CellKey, Classification, Decision

MIDNIGHT = 60_000_000.0
"""Unix time at which the simulated day begins: on a minute's edge."""


@dataclass(frozen=True, slots=True)
class Backend:
    """What every gateway knows of a pool from its configuration."""

    name: str
    arms: tuple[Arm, ...]
    costs: CostTable | None
    """None: a pool that reports none; arms are compared by measured time."""


class Shared:
    """The statistics store that all gateways write to and read from."""

    def __init__(self) -> None:
        self._cells: dict[tuple[int, CellKey], dict[str, int]] = {}
        self._buckets: dict[tuple[int, CellKey], Bucket] = {}
        self._dirty: set[tuple[int, CellKey]] = set()

    def add(self, now: float, items: Sequence[tuple[CellKey, dict[str, int]]]) -> None:
        """Add one record's increments."""
        for key, increments in items:
            place = (int(now // 60), key)
            counters = self._cells.setdefault(place, {})
            for name, value in increments.items():
                counters[name] = counters.get(name, 0) + value
            self._dirty.add(place)

    def buckets(self) -> list[Bucket]:
        """Return what a gateway reads now; cells without news come back as they were."""
        for place in self._dirty:
            self._buckets[place] = Bucket(*place, dict(self._cells[place]))
        self._dirty.clear()
        return list(self._buckets.values())


@dataclass(slots=True)
class Gateway:
    """One of many; nothing is shared but the store."""

    backends: Sequence[Backend]
    tuning: Tuning
    phase: float
    """When within each second it looks, so that not all look at once."""
    rule: Rule = field(default_factory=lambda: Rule("fleet", holdout=0.0))
    snapshot: Snapshot | None = None
    in_flight: Counter[str] = field(default_factory=Counter)
    switches: list[float] = field(default_factory=list)
    """When a settled incumbent changed."""
    _loads: dict[str, Load] = field(default_factory=dict)
    _others: dict[str, int] = field(default_factory=dict)

    def look(self, now: float, shared: Shared, loads: Mapping[str, Load], servers: Mapping[str, int]) -> None:
        """Read statistics and load, and build the next snapshot, as the live refresher does."""
        for name, load in loads.items():
            self._loads[name] = load
            self._others[name] = max(0, load.running * servers[name] - self.in_flight[name])
        before = self.snapshot
        self.snapshot = build_snapshot(
            shared.buckets(),
            {backend.name: backend.costs for backend in self.backends if backend.costs},
            now=MIDNIGHT + now,
            previous=before.copied() if before else None,
            arms={backend.name: backend.arms for backend in self.backends},
            epochs={backend.name: EPOCH for backend in self.backends},
            tuning=self.tuning,
        )
        if before is not None:
            for key, node in self.snapshot.nodes.items():
                old = before.nodes.get(key)
                settled = old is not None and old.state.settled and node.state.settled
                if settled and old is not None and old.state.incumbent != node.state.incumbent:
                    self.switches.append(now)

    def decide(self, task: str, prompt_tokens: int, draw: float, servers: Mapping[str, int]) -> Decision:
        """Decide one request with what this gateway knows by now."""
        assert self.snapshot is not None  # noqa: S101 - every gateway looks before the first request
        return decide(
            request_stub(),
            Classification(task, 1.0, "declared"),
            self.rule,
            self.snapshot,
            {backend.name: self._state(backend, servers[backend.name]) for backend in self.backends},
            prompt_tokens=prompt_tokens,
            draw=draw,
            policy="fleet",
        )

    def _state(self, backend: Backend, servers: int) -> BackendState:
        """Return what the adapter would tell: load per server, its own requests counted as of now."""
        name, load = backend.name, self._loads[backend.name]
        running = -(-(self.in_flight[name] + self._others.get(name, 0)) // servers)
        state = state_stub(name, backend.arms, engine=backend.costs is not None, running=running)
        return msgspec.structs.replace(state, waiting=load.waiting, kv_used=load.kv_used)
