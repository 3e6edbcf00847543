"""The same simulation over separate pools that report no costs: only noisy time per token and acceptance histograms.

Each draft length is a pool of its own, as is plain; no speculative round tells what a plain step would have taken.
"""

from __future__ import annotations

import msgspec
import numpy as np

from cli.simulation.replay import Steps, Table
from cli.simulation.router import AGE_EVERY, EPOCH, RATE, Run, record_of, request_stub, state_stub
from gateway.bands import context_band, load_band
from gateway.policy.schema import Rule
from gateway.routing import Tuning, decide, observe
from gateway.routing.book import Book
from gateway.routing.observe import TIME_UNIT_S
from gateway.routing.snapshot import NodeKey, Snapshot, make_node
from gateway.routing.thresholds import named_by, tuned
from gateway.types import Arm, BackendState, Classification


class PoolRouter:
    """The live decision over one plain pool and one pool per draft length; times carry log-normal noise."""

    def __init__(self, table: Table, method: str, rule: Rule, tuning: Tuning, *, noise: float) -> None:
        self._table, self._method, self._rule, self._noise = table, method, rule, noise
        self._pools = {0: "plain", **{k: f"k{k}" for k in table.lengths[1:]}}
        self._states = {name: self._state(name, k) for k, name in self._pools.items()}
        book = Book({(name, method): (k,) for k, name in self._pools.items() if k})
        offered = {name: [(method, k)] if k else [] for k, name in self._pools.items()}
        constants = tuned(tuning, named_by(rule))
        self._snapshot = Snapshot(0.0, False, book, {}, offered, dict.fromkeys(offered, EPOCH), constants)
        self._request = request_stub()
        self._clock: dict[NodeKey, float] = {}
        self._now = 0.0

    def run(self, sequence: list[int], rng: np.random.Generator) -> Run:
        """Decide, replay and learn from each request of `sequence`; times in the result carry no noise."""
        run = Run()
        draws = rng.random(len(sequence)).tolist()
        noises = np.exp(self._noise * rng.standard_normal(len(sequence))).tolist()
        for count, (index, draw, noise) in enumerate(zip(sequence, draws, noises, strict=True)):
            if count % AGE_EVERY == 0 and count:
                self._now += AGE_EVERY / RATE
                self._snapshot.book.scale(0.5 ** (AGE_EVERY / RATE / self._snapshot.tuning.half_life))
                self._snapshot.flow.advance(self._now, self._snapshot.tuning.shift_s)  # as each refresh does
            arm, state = self._decide(index, draw, run)
            steps = self._table.steps[index][self._table.lengths.index(arm.k)]
            run.seconds.append(steps.seconds)
            run.arms.append(arm.k)
            run.states.append(state)
            self._learn(index, arm, steps, noise)
        return run

    def _state(self, name: str, k: int) -> BackendState:
        arm = Arm(name, self._method, k) if k else Arm(name)
        return state_stub(name, (arm,), engine=False, running=self._table.costs.batch - 1)

    def _decide(self, index: int, draw: float, run: Run) -> tuple[Arm, str]:
        trace = self._table.traces[index]
        band, load = context_band(trace.prompt_tokens), load_band(self._table.costs.batch)
        for name in self._states:
            key: NodeKey = (name, trace.seen_task, "0", band, load)
            before = self._snapshot.nodes.get(key)
            node = make_node(self._snapshot, key, before, self._now - self._clock.get(key, self._now))
            settled = before is not None and before.state.settled and node.state.settled
            run.switches += bool(settled and before and before.state.incumbent != node.state.incumbent)
            self._snapshot.nodes[key], self._clock[key] = node, self._now
        self._snapshot.weighed.clear()  # what was worked out from the nodes before
        decision = decide(
            self._request,
            Classification(trace.seen_task, 1.0, "declared"),
            self._rule,
            self._snapshot,
            self._states,
            prompt_tokens=trace.prompt_tokens,
            draw=draw,
            policy="simulated",
        )
        return decision.arm, decision.state

    def _learn(self, index: int, arm: Arm, steps: Steps, noise: float) -> None:
        record = record_of(self._table, index, arm, steps, None)
        record.tpot_s = steps.seconds / len(self._table.traces[index].emitted) * noise
        if record.spec is not None:
            bare = msgspec.structs.replace(record.spec, step_emitted=[], step_drafted=[], plain_s=None, batch_mean=None)
            record.spec = bare if arm.k else None
        for key, counters in observe(record):
            self._snapshot.book.add(key, counters, 1.0, TIME_UNIT_S)
