"""Sends a sequence of traced requests through the live decision, one at a time, and learns from each before the next.

Nothing is decided here: `observe`, `Book`, `make_node`, `decide` and the engine's `Controller` are the live ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from cli.simulation.flight import fly
from cli.simulation.replay import Steps, Table
from cli.simulation.traces import Trace
from gateway.policy.schema import Rule
from gateway.routing import Tuning, decide, observe
from gateway.routing.applications import finer_of, label
from gateway.routing.book import Book
from gateway.routing.snapshot import Node, NodeKey, Snapshot, make_node
from gateway.routing.stats import Vector, layout_of
from gateway.routing.thresholds import Thresholds, named_by, tuned
from gateway.types import (
    Arm,
    BackendState,
    CellKey,
    Classification,
    Decision,
    GenerateRequest,
    Identity,
    RequestRecord,
    Spec,
)

BACKEND = "simulated"
EPOCH = "1"
RATE = 10.0
"""Requests per second of the simulated clock, which only the half-life sees."""
AGE_EVERY = 16
"""Requests between two discountings of the statistics."""


@dataclass(slots=True)
class Run:
    """What one sequence cost."""

    seconds: list[float] = field(default_factory=list)
    """By request, in order."""
    arms: list[int] = field(default_factory=list)
    """Draft length taken."""
    states: list[str] = field(default_factory=list)
    switches: int = 0
    """Changes of a settled incumbent."""


class Router:
    """The live decision over one table of traces."""

    def __init__(
        self,
        table: Table,
        method: str,
        rules: Rule | Sequence[Rule],
        tuning: Tuning,
        *,
        in_flight: bool,
    ) -> None:
        """`rules`: one for all, or that of each trace."""
        self._table, self._method, self._in_flight = table, method, in_flight
        self._rules = [rules] * len(table.traces) if isinstance(rules, Rule) else list(rules)
        lengths = table.lengths[1:]
        arms = (Arm(BACKEND), *(Arm(BACKEND, method, k) for k in lengths))
        self._state = state_stub(BACKEND, arms, engine=True, adaptive=in_flight, running=table.costs.batch - 1)
        self._layout = layout_of(lengths)
        self._views: dict[Thresholds, Snapshot] = {}
        self._apart: dict[float, Snapshot] = {}
        """By half-life: one of the views that share its book and its change detectors."""
        for wanted in dict.fromkeys(map(named_by, self._rules)):
            self._add_view(wanted, tuned(tuning, wanted))
        self._request = request_stub()
        self._clock: dict[tuple[Thresholds, NodeKey], float] = {}
        self._now = 0.0
        self._seen = table.observed
        self._applications = any(trace.application for trace in table.traces)
        self._served = 0
        self.alarms: list[tuple[int, str]] = []
        """(requests served, task) of every change that was noticed."""

    def _add_view(self, wanted: Thresholds, tuning: Tuning) -> None:
        """Make the statistics as rules with these thresholds see them."""
        lengths = self._table.lengths[1:]
        book = Book({(BACKEND, self._method): lengths})
        offered = {BACKEND: [(self._method, k) for k in lengths]}
        view = Snapshot(0.0, False, book, {BACKEND: self._table.costs}, offered, {BACKEND: EPOCH}, tuning)
        same = self._apart.setdefault(tuning.half_life, view)
        view.book, view.eras = same.book, same.eras
        self._views[wanted] = view

    def run(self, sequence: list[int], rng: np.random.Generator) -> Run:
        """Decide, replay and learn from each request of `sequence` (indices of traces)."""
        run = Run()
        draws = rng.random(len(sequence)).tolist()
        for count, (index, draw) in enumerate(zip(sequence, draws, strict=True)):
            if count % AGE_EVERY == 0 and count:
                self._age()
            decision = self._decide(index, draw, run)
            steps = self._serve(index, decision)
            run.seconds.append(steps.seconds)
            run.arms.append(decision.arm.k)
            run.states.append(decision.state)
            self._served = count
            self._learn(index, decision, steps)
        return run

    def _decide(self, index: int, draw: float, run: Run) -> Decision:
        trace = self._table.traces[index]
        wanted = named_by(self._rules[index])
        view = self._views[wanted]
        key = self._key(index, view)
        before = view.nodes.get(key)
        node = make_node(view, key, before, self._now - self._clock.get((wanted, key), self._now))
        run.switches += _switched(before, node)
        view.nodes[key] = node
        view.weighed.clear()  # what was worked out from the node before
        self._clock[wanted, key] = self._now
        return decide(
            self._request_of(trace),
            Classification(trace.seen_task, 1.0, "declared"),
            self._rules[index],
            view,
            {BACKEND: self._state},
            prompt_tokens=trace.prompt_tokens,
            draw=draw,
            policy="simulated",
        )

    def _request_of(self, trace: Trace) -> GenerateRequest:
        self._request.application = trace.application
        return self._request

    def _key(self, index: int, view: Snapshot) -> NodeKey:
        key, _, _ = self._observed(index, 0, self._table.steps[index][0], None)
        task = view.finest(BACKEND, key.task, self._table.traces[index].application)
        return (key.backend, task, key.temperature, key.context, key.load)

    def _serve(self, index: int, decision: Decision) -> Steps:
        speculation = decision.speculation
        if speculation is not None and speculation.adaptive is not None:
            return fly(self._table.traces[index], self._table.costs, speculation)
        return self._table.steps[index][self._table.lengths.index(decision.arm.k)]

    def _learn(self, index: int, decision: Decision, steps: Steps) -> None:
        fixed = decision.speculation is None or decision.speculation.adaptive is None
        key, counters, vector = self._observed(index, decision.arm.k, steps, None if fixed else decision)
        application = self._table.traces[index].application
        names = (key.task, label(key.task, application)) if application else (key.task,)
        for first, view in enumerate(self._apart.values()):
            for name in names:
                kind = (key.backend, name, key.temperature, key.context)
                view.book.requests[kind] += counters.get("n", 0)
                if key.k:
                    view.book.add_vector(kind, key.method, key.k, vector)
            if key.k:
                changed = self._watch(key, counters, view)
                self.alarms += [(self._served, task) for task in changed if not first]

    def _watch(self, key: CellKey, counters: dict[str, int], view: Snapshot) -> set[str]:
        """Feed the change detector; what it finds to be of the past is forgotten. Returns the tasks that changed."""
        moments = (counters.get("sn", 0), counters.get("s", 0), counters.get("ss", 0))
        changed = view.eras.watches.note(key.backend, key.method, key.task, {key.k: moments})
        for task in changed:
            view.book.forget(key.backend, key.method, task)
        return changed

    def _observed(
        self, index: int, k: int, steps: Steps, decision: Decision | None
    ) -> tuple[CellKey, dict[str, int], Vector]:
        """Return what the live recorder would count of this request; fixed draft lengths are worked out once."""
        found = self._seen.get((index, k)) if decision is None else None
        if found is None:
            arm = Arm(BACKEND, self._method, k) if k else Arm(BACKEND)
            ((key, counters),) = observe(record_of(self._table, index, arm, steps, decision))
            found = (key, counters, self._layout.vector(counters))
            if decision is None:
                self._seen[index, k] = found
        return found

    def _age(self) -> None:
        elapsed = AGE_EVERY / RATE
        self._now += elapsed
        for half_life, view in self._apart.items():
            view.book.scale(0.5 ** (elapsed / half_life))
        if self._applications:
            for view in self._views.values():
                view.finer = finer_of(view.book, [BACKEND])


def _switched(before: Node | None, after: Node) -> int:
    if before is None or not (before.state.settled and after.state.settled):
        return 0
    return int(before.state.incumbent != after.state.incumbent)


def state_stub(name: str, arms: tuple[Arm, ...], *, engine: bool, running: int, adaptive: bool = False) -> BackendState:
    """Return the state of a healthy backend of the simulation: our engine, or a pool whose arm was fixed at launch."""
    return BackendState(
        name=name,
        kind="engine" if engine else "vllm",
        healthy=True,
        arms=arms,
        model="",
        max_model_len=None,
        epoch=EPOCH,
        has_tool_template=True,
        per_request_stats=True,
        per_request_switch=engine,
        adaptive=adaptive,
        running=running,
    )


def request_stub() -> GenerateRequest:
    """Return a request that leaves every choice to the decision."""
    return GenerateRequest(
        request_id="simulated",
        endpoint="completions",
        body={},
        model="",
        stream=False,
        include_usage=False,
        identity=Identity("simulated", "simulated", "app", False),
        arrived=0.0,
        arrived_at=0.0,
        temperature=0.0,
        max_tokens=None,
    )


def record_of(table: Table, index: int, arm: Arm, steps: Steps, decided: Decision | None) -> RequestRecord:
    """Return the record that the gateway would have made of this request."""
    trace = table.traces[index]
    size = len(trace.emitted)
    rounds = sum(1 for d in steps.drafted if d)
    histogram = [0] * (max(steps.drafted, default=0) + 1)
    for e, d in zip(steps.emitted, steps.drafted, strict=True):
        if d:
            histogram[e - 1] += 1
    spec = Spec(
        rounds=rounds,
        drafted=sum(steps.drafted),
        accepted=size - len(steps.emitted),
        histogram=histogram,
        undrafted=len(steps.drafted) - rounds,
        batch_mean=float(table.costs.batch),
        step_emitted=steps.emitted,
        step_drafted=steps.drafted,
    )
    offered = {"offered": list(table.lengths[1:])}
    decision = decided or Decision(arm, "", "ok", "", "", numbers=offered, load=table.costs.batch)
    return RequestRecord(
        request_id=trace.id,
        at=0.0,
        endpoint="completions",
        model="",
        key_id="",
        task=trace.seen_task,
        confidence=1.0,
        source="declared",
        arm=arm,
        epoch=EPOCH,
        decision=decision,
        stream=False,
        temperature=0.0,
        status=200,
        error_code=None,
        finish_reason="stop" if size < table.cap else "length",
        prompt_tokens=trace.prompt_tokens,
        completion_tokens=size,
        cached_tokens=0,
        overhead_s=0.0,
        ttft_s=None,
        tpot_s=steps.seconds / size,
        e2e_s=steps.seconds,
        itl_s=[],
        spec=spec,
    )
