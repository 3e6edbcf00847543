"""One day of the fleet, routed by the live decision or held at a fixed choice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import msgspec

from cli.simulation.costs import CostModel
from cli.simulation.fleet.gateways import MIDNIGHT, Backend, Gateway, Shared
from cli.simulation.fleet.servers import Job, Pool
from cli.simulation.fleet.settings import FleetSettings
from cli.simulation.fleet.traffic import Arrival, arrivals
from cli.simulation.replay import Steps, Table
from cli.simulation.router import record_of
from engine.messages import CostCell, CostTable
from gateway.routing import Tuning, observe
from gateway.types import Arm, Decision

DT = 0.05
"""Seconds of one tick of the servers."""
DRAIN_S = 120.0
"""What is still queued at the day's end is served for so long."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The fleet at one second."""

    at: float
    speculative: int
    """Requests that took a speculative arm in this second, of"""
    arrived: int
    waiting: dict[str, int]
    """Sequences in the queues of each pool."""


@dataclass(slots=True)
class Day:
    """What one run of the day came to."""

    jobs: list[Job] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    switches: list[list[float]] = field(default_factory=list)
    """By gateway: when a settled incumbent changed."""
    nodes: int = 0
    """Kinds of request and loads known, over all gateways."""


class Fleet:
    """Pools (one plain, one per draft length), or with `engines` one pool that chooses per request."""

    def __init__(self, settings: FleetSettings, table: Table, tuning: Tuning, *, engines: bool) -> None:
        self.settings, self.table, self.tuning, self.engines = settings, table, tuning, engines
        lengths = table.lengths[1:]
        costs = table.costs
        if engines:
            arms = (Arm("engine"), *(Arm("engine", settings.method, k) for k in lengths))
            self.backends = [Backend("engine", arms, cost_table(costs, settings.method, lengths, settings.slots))]
        else:
            self.backends = [Backend("plain", (Arm("plain"),), None)]
            self.backends += [Backend(f"draft-k{k}", (Arm(f"draft-k{k}", settings.method, k),), None) for k in lengths]
        self.servers = dict.fromkeys((b.name for b in self.backends), self._servers())

    def _servers(self) -> int:
        """Return servers per pool, so that the peak keeps them as busy as the settings say."""
        settings, table = self.settings, self.table
        tokens = float(table.tokens.mean())
        context = float(sum(trace.prompt_tokens for trace in table.traces)) / len(table.traces) + tokens / 2
        slots = min(settings.slots, settings.kv_tokens / (context + tokens / 2))
        verify = table.costs.verify
        step = table.costs.overhead + verify.base + slots * (verify.per_k + verify.per_kv * context)
        wanted = settings.sampled_rate * (tokens * step / slots + verify.per_k * context) / settings.busy
        return max(1, round(wanted / len(self.backends)))

    def day(self, fixed: Callable[[Arrival], Arm] | None = None) -> Day:
        """Run one day; `fixed` chooses without the decision."""
        return _Run(self, fixed).day()


class _Run:
    def __init__(self, fleet: Fleet, fixed: Callable[[Arrival], Arm] | None) -> None:
        settings = fleet.settings
        self.fleet, self.fixed = fleet, fixed
        self.pools = {backend.name: self._pool(backend) for backend in fleet.backends}
        self.shared = Shared()
        self.gateways = [
            Gateway(fleet.backends, fleet.tuning, settings.poll_s * i / settings.gateways)
            for i in range(settings.gateways)
        ]
        self.result = Day()
        self._counts = [0, 0]

    def _pool(self, backend: Backend) -> Pool:
        settings = self.fleet.settings
        drafting = any(arm.k for arm in backend.arms)
        kv = round(settings.kv_tokens * (1 - settings.draft_kv * drafting))
        return Pool(self.fleet.table.costs, self.fleet.servers[backend.name], settings.slots, kv)

    def day(self) -> Day:
        """Let the servers decode tick by tick; gateways look once a second, requests come in between."""
        settings = self.fleet.settings
        due = [0.0] * len(self.gateways)
        coming = arrivals(settings, self.fleet.table.traces)
        next_one = next(coming, None)
        for tick in range(round((settings.day_s + DRAIN_S) / DT)):
            now = tick * DT
            if next_one is None and not any(pool.busy for pool in self.pools.values()):
                break
            loads = {name: pool.load() for name, pool in self.pools.items()}
            if self.fixed is None:
                for i, gateway in enumerate(self.gateways):
                    if now >= due[i] and next_one is not None:
                        gateway.look(now, self.shared, loads, self.fleet.servers)
                        due[i] = now + (settings.poll_s if tick else max(DT, gateway.phase))
            next_one = self._arrive(next_one, coming, now + DT)
            for name, pool in self.pools.items():
                for job in pool.tick(now, DT):
                    self._finished(name, job)
            if next_one is not None and (tick + 1) % round(1 / DT) == 0:
                self._sample(now)
        self.result.switches = [gateway.switches for gateway in self.gateways]
        self.result.nodes = sum(len(g.snapshot.nodes) for g in self.gateways if g.snapshot)
        return self.result

    def _arrive(self, one: Arrival | None, coming: Iterator[Arrival], until: float) -> Arrival | None:
        table = self.fleet.table
        while one is not None and one.at < until:
            gateway, trace = self.gateways[one.gateway], table.traces[one.trace]
            decision: Decision | None = None
            if self.fixed is None:
                decision = gateway.decide(trace.seen_task, trace.prompt_tokens, one.draw, self.fleet.servers)
                arm = decision.arm
            else:
                arm = self.fixed(one)
            gateway.in_flight[arm.backend] += 1
            self._counts[0] += arm.k > 0
            self._counts[1] += 1
            steps = self._steps(one, arm.k)
            size = int(table.tokens[one.trace])
            job = Job(one.trace, arm, trace.prompt_tokens, steps, size, one.at, one.gateway, decision)
            self.pools[arm.backend].add(job)
            one = next(coming, None)
        return one

    def _steps(self, one: Arrival, k: int) -> Steps:
        settings, table = self.fleet.settings, self.fleet.table
        steps = table.steps[one.trace][table.lengths.index(k)]
        first, last = (part * settings.day_s for part in settings.collapse)
        if k and first <= one.at < last:
            size = int(table.tokens[one.trace])
            return Steps([1] * size, [k] * size, 0.0)
        return steps

    def _finished(self, name: str, job: Job) -> None:
        arm, decision = job.arm, job.decision
        self.gateways[job.gateway].in_flight[name] -= 1
        self.result.jobs.append(job)
        if decision is None:
            return
        record = record_of(self.fleet.table, job.number, arm, job.steps, decision)
        record.at = MIDNIGHT + job.finished
        record.ttft_s = max(0.0, job.first_token - job.arrived)
        record.e2e_s = job.finished - job.arrived
        record.tpot_s = (job.finished - job.first_token) / max(1, job.tokens - 1)
        if record.spec is not None:
            if self.fleet.engines:
                record.spec.batch_mean = job.batch_seen
            else:
                bare = msgspec.structs.replace(record.spec, step_emitted=[], step_drafted=[], batch_mean=None)
                record.spec = bare if arm.k else None
        self.shared.add(record.at, observe(record))

    def _sample(self, now: float) -> None:
        waiting = {name: sum(map(len, pool.queues)) for name, pool in self.pools.items()}
        self.result.samples.append(Sample(now, self._counts[0], self._counts[1], waiting))
        self._counts = [0, 0]


def cost_table(costs: CostModel, method: str, lengths: tuple[int, ...], slots: int) -> CostTable:
    """Return what an engine with these costs would have measured."""
    cells = []
    for batch in (b for b in (1, 2, 4, 8, 16, 32, 64, 128, 256) if b <= 2 * slots):
        for context in (0, 512, 2048, 8192):
            kv = batch * costs.verify.per_kv * context
            plain = costs.overhead + costs.verify.base + batch * costs.verify.per_k + kv
            for k in lengths:
                verify = plain + batch * costs.verify.per_k * k
                draft = costs.draft.base + costs.draft.per_k * (k + 1) + batch * costs.draft.per_kv * context
                cells.append(CostCell(batch, context, k, method, draft, verify, plain, 50))
    return CostTable(cells)
