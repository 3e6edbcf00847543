"""Live statistics → what the decision reads. Pure; called by `gateway.refresh` once a second and by the simulator.

Everything that costs time is done here, so that `decide` only looks up: per kind of request and load a `Node` with the
estimates of all arms, their differences, the incumbent and the share of probes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import msgspec

from engine.messages import CostTable
from gateway.bands import CONTEXT_BANDS
from gateway.epochs import kind_of
from gateway.histogram import LatencyCell
from gateway.policy.schema import BreakEven, Rule
from gateway.routing import measured
from gateway.routing.applications import Finer, finer_of, label, parent_of
from gateway.routing.book import Book, Kind
from gateway.routing.costs import Costs, TableCosts
from gateway.routing.eras import Eras, Row
from gateway.routing.estimates import ArmKey, Evidence, Setting, evidence_at
from gateway.routing.flight import Flight, flight_at
from gateway.routing.flow import Flow
from gateway.routing.guard import Guard
from gateway.routing.observe import TIME_UNIT_S
from gateway.routing.priors import application_priors, task_priors
from gateway.routing.states import NodeState, advance, probe_share
from gateway.routing.thresholds import Thresholds, tuned
from gateway.routing.tuning import Tuning
from gateway.types import Arm, CellKey

TYPICAL_CONTEXT = dict(zip(CONTEXT_BANDS, (300, 1200, 4500, 18000, 48000), strict=True))
"""Tokens that stand for a context band where costs are looked up."""
CARRY_S = 10.0
"""Seconds for which a node without new requests is carried on as it is."""
MOST_NODES = 40
"""Nodes that one refresh makes anew at most, those that decisions have used first, then the oldest: its time is
bounded, the rest has its turn next."""
_FEWEST_NODES = 16
"""The same for each of several views, which share that number."""
DEFAULT_ALARM = Rule("").zero_accept_alarm
ByArm = dict[tuple[str, str, str, int], list["Bucket"]]
"""Buckets by (backend, epoch, method, k)."""
NodeKey = tuple[str, str, str, str, int]
"""(backend, task or application of a task, temperature band, context band, load band)."""


class Bucket(msgspec.Struct, frozen=True):
    """The counters of one cell in one minute, as merged over all gateways by Redis."""

    minute: int
    """Unix time // 60."""
    key: CellKey
    counters: Mapping[str, int]


@dataclass(slots=True)
class Node:
    """What is known of one kind of request at one load."""

    evidence: Evidence
    state: NodeState
    probe_share: float
    probe_arms: list[ArmKey]
    flights: dict[str, Flight] = field(default_factory=dict)
    """In-flight control, per method."""
    requests: float = 0.0
    """Requests of this kind (discounted), as of the snapshot."""
    signature: object = None
    """What it was made from; unchanged, it is carried on for a while."""
    made_at: float = 0.0
    used: bool = False
    """Whether a decision has looked at it."""
    alarm_at: float | None = DEFAULT_ALARM
    """Zero-accept rate at which the rule that last asked raises its alarm; None: it has none."""


@dataclass(slots=True)
class Snapshot:
    """What `decide` reads. Nodes that no refresh foresaw are made on first use and kept."""

    made_at: float
    stale: bool
    book: Book
    costs: Mapping[str, Costs]
    offered: Mapping[str, Sequence[ArmKey]]
    """By backend: the speculative arms that are compared."""
    epochs: Mapping[str, str]
    tuning: Tuning
    nodes: dict[NodeKey, Node] = field(default_factory=dict)
    history: tuple[LatencyCell, ...] = ()
    guard: Guard = field(default_factory=Guard)
    """p99 standings; carried on likewise."""
    eras: Eras = field(default_factory=Eras)
    """Change detectors; carried on from snapshot to snapshot."""
    flow: Flow = field(default_factory=Flow)
    """Shares of backends; carried on likewise."""
    controlled: set[str] = field(default_factory=set)
    """Backends whose requests `decide` has sent out under in-flight control."""
    views: dict[Thresholds, Snapshot] = field(default_factory=dict)
    """The same statistics under other thresholds than the usual ones: those that rules of the policy name."""
    asked: dict[NodeKey, Thresholds | None] = field(default_factory=dict)
    """Under which thresholds a kind of request was last decided, where there are views; carried on."""
    thresholds: Thresholds | None = None
    """Those of this view; None: the usual ones."""
    finer: Mapping[tuple[str, str], Finer] = field(default_factory=dict)
    """Applications that are decided by themselves, by (backend, label)."""
    weighed: dict[Any, Any] = field(default_factory=dict, init=False)
    """What decisions have worked out from this very snapshot (`routing.weigh`); a copy starts with none."""

    def under(self, wanted: BreakEven) -> Snapshot:
        """Return the view that a rule's thresholds ask for: this one, where no such view has been made (yet)."""
        if not self.views:
            return self
        return self.views.get(Thresholds(wanted.confidence, wanted.half_life, wanted.min_requests), self)

    def in_force(self) -> Iterator[tuple[Snapshot, NodeKey, Node]]:
        """Return each kind of request with its node in the view by which it was last decided, and that view."""
        for key in dict.fromkeys(key for view in (self, *self.views.values()) for key in view.nodes):
            view = self.views.get(self.asked.get(key) or Thresholds(0.0, 0.0, 0), self)
            view = view if key in view.nodes else self
            if key in view.nodes:
                yield view, key, view.nodes[key]

    def copied(self, *, stale: bool | None = None) -> Snapshot:
        """Return a copy whose nodes stay as they are while decisions add some here; optionally marked stale or not."""
        stale = self.stale if stale is None else stale
        views = {wanted: view.copied(stale=stale) for wanted, view in self.views.items()}
        return replace(self, stale=stale, nodes=dict(self.nodes), views=views)

    def finest(self, backend: str, task: str, application: str) -> str:
        """Return under which name such requests are decided: that of their application or of their task."""
        if not application or not self.finer:
            return task
        mine = label(task, application)
        return mine if (backend, mine) in self.finer else task

    def node(self, key: NodeKey) -> Node:
        """Return the node of a kind of request at a load band."""
        found = self.nodes.get(key)
        if found is None:
            found = self.nodes[key] = make_node(self, key, None, 0.0)
        found.used = True
        return found


def empty_snapshot(now: float = 0.0, *, stale: bool = False) -> Snapshot:
    """Return a snapshot without any statistics, for a gateway that has just started."""
    return build_snapshot((), {}, now=now, stale=stale)


def build_snapshot(
    buckets: Iterable[Bucket],
    costs: Mapping[str, CostTable],
    *,
    now: float,
    history: Iterable[LatencyCell] = (),
    stale: bool = False,
    previous: Snapshot | None = None,
    arms: Mapping[str, Sequence[Arm]] | None = None,
    epochs: Mapping[str, str] | None = None,
    tuning: Tuning | None = None,
    thresholds: Collection[Thresholds] = (),
) -> Snapshot:
    """Return the snapshot at `now` (Unix seconds).

    `previous` carries each node's state on. `arms` are the arms on offer per backend (default: all that costs or
    statistics name), `epochs` the backends' present epochs (default: that of the newest bucket); others are left out.
    `thresholds` are those that rules name beside the usual ones (`thresholds_of`): a view is made for each.
    """
    tuning = tuning or Tuning()
    cells = _by_arm(buckets)
    current = _newest_epochs(cells) | dict(epochs or {})
    living, former = _living(cells, current)
    live, lent = [*chain(*living.values())], [*chain(*former.values())]
    offered = _offered(living, costs, arms)
    lengths = _lengths([*living, *former], offered)
    views = {name: _view(name, table, previous) for name, table in costs.items() if table.cells}
    snapshot = Snapshot(now, stale, Book(lengths), views, offered, current, tuning, history=tuple(history))
    if previous is not None:
        snapshot.guard, snapshot.controlled, snapshot.asked = previous.guard, previous.controlled, previous.asked
        snapshot.flow = previous.flow
    snapshot.flow.advance(now, tuning.shift_s)
    snapshot.eras = previous.eras if previous else Eras(at=now)
    rows = snapshot.eras.rows(live, snapshot.book.layouts)
    _count(snapshot, live, rows, lent)
    snapshot.guard.advance(snapshot.history, now)
    most = max(_FEWEST_NODES, MOST_NODES // (1 + len(thresholds)))
    _fill(snapshot, previous, most)
    by_half_life = {tuning.half_life: snapshot}
    for wanted in thresholds:
        before = previous.views.get(wanted) if previous else None
        view = replace(snapshot, tuning=tuned(tuning, wanted), nodes={}, views={}, thresholds=wanted)
        same = by_half_life.setdefault(view.tuning.half_life, view)
        if same is view:
            view.book, view.eras = Book(lengths), before.eras if before else Eras(at=now)
            _count(view, live, rows, lent)
        else:
            view.book, view.eras, view.finer = same.book, same.eras, same.finer
        _fill(view, before, most)
        snapshot.views[wanted] = view
    _forget_asked(snapshot)
    return snapshot


def _by_arm(buckets: Iterable[Bucket]) -> ByArm:
    found: ByArm = defaultdict(list)
    for bucket in buckets:
        key = bucket.key
        found[key.backend, key.epoch, key.method, key.k].append(bucket)
    return found


def _living(cells: ByArm, current: Mapping[str, str]) -> tuple[ByArm, ByArm]:
    """Return the buckets of the present epochs, and those of earlier processes of the same kind."""
    kinds = {backend: kind_of(epoch) for backend, epoch in current.items()}
    live = {arm: found for arm, found in cells.items() if current.get(arm[0]) == arm[1]}
    lent = {
        arm: found
        for arm, found in cells.items()
        if arm not in live and kinds.get(arm[0]) and kind_of(arm[1]) == kinds[arm[0]]
    }
    return live, lent


def _forget_asked(snapshot: Snapshot) -> None:
    """Drop by which thresholds nodes were asked that no view has any more."""
    for key in list(snapshot.asked):  # decisions may be adding to it
        if not any(key in view.nodes for view in (snapshot, *snapshot.views.values())):
            snapshot.asked.pop(key, None)


def _count(snapshot: Snapshot, live: Sequence[Bucket], rows: Sequence[Row], lent: Sequence[Bucket] = ()) -> None:
    """Fill the book with discounted counters, and set aside what came before a change."""
    book, now, half_life = snapshot.book, snapshot.made_at, snapshot.tuning.half_life
    weights = {minute: 0.5 ** (max(0.0, now - 60.0 * minute) / half_life) for minute in {b.minute for b in live}}
    book.add_all([(b.key, weights[b.minute], row.vector) for b, row in zip(live, rows, strict=True)], TIME_UNIT_S)
    _lend(snapshot, lent)
    snapshot.eras.inherit(lent)
    snapshot.eras.look(live, rows, now, half_life)
    snapshot.eras.apply(book)
    snapshot.finer = finer_of(book, snapshot.costs)


def _lend(snapshot: Snapshot, lent: Sequence[Bucket]) -> None:
    """Add what a backend's earlier process starts had counted, as a few requests of each kind."""
    weighed: list[tuple[Bucket, float]] = []
    requests: dict[Kind, float] = defaultdict(float)
    for bucket in lent:
        key, age = bucket.key, max(0.0, snapshot.made_at - 60.0 * bucket.minute)
        weight = 0.5 ** (age / snapshot.tuning.half_life)
        weighed.append((bucket, weight))
        requests[key.backend, key.task, key.temperature, key.context] += weight * bucket.counters.get("n", 0)
    for bucket, weight in weighed:
        key = bucket.key
        total = requests[key.backend, key.task, key.temperature, key.context]
        share = min(1.0, snapshot.tuning.restart_requests / total) if total > 0 else 0.0
        snapshot.book.add(key, bucket.counters, weight * share, TIME_UNIT_S)


def _view(name: str, table: CostTable, previous: Snapshot | None) -> Costs:
    """Return a table's costs, those of the last snapshot (with what they remember) where nothing has changed."""
    before = previous.costs.get(name) if previous else None
    return before if isinstance(before, TableCosts) and before.table == table else TableCosts(table)


def make_node(
    snapshot: Snapshot, key: NodeKey, before: Node | None, elapsed: float, context: float | None = None
) -> Node:
    """Return the node at `key`, its state advanced from `before`, which is `elapsed` seconds older."""
    backend, task, temperature, band, load = key
    tuning, book = snapshot.tuning, snapshot.book
    kind: Kind = (backend, task, temperature, band)
    offered = snapshot.offered.get(backend, ())
    piles = book.pile(kind, tuning.lend_requests)
    where = context if context is not None else TYPICAL_CONTEXT.get(band, TYPICAL_CONTEXT[CONTEXT_BANDS[0]])
    setting = Setting(snapshot.costs.get(backend), load, where, tuning)
    finer = snapshot.finer.get((backend, task))
    within = parent_of(task) if finer else ""
    wider = book.pile((backend, within, temperature, band), tuning.lend_requests) if within else {}
    if finer and within:
        priors = application_priors(wider, offered, setting, finer)
    else:
        priors = task_priors(book, kind, piles, offered, setting)
    evidence = evidence_at(piles, offered, setting, priors)
    if setting.costs is None:
        measured.fill(evidence, book, kind, load, tuning)
    requests = book.requests.get(kind, 0.0)
    if evidence.arms[0].measured:
        requests = book.requests_anywhere(kind)  # plain ones went elsewhere
    state = before.state if before else NodeState()
    fresh = requests - (before.requests * 0.5 ** (elapsed / tuning.half_life) if before else 0.0)
    watched = within or task
    watches = [snapshot.eras.watches.tasks.get((backend, method, watched)) for method in {m for m, _ in offered}]
    era = sum(watch.era for watch in watches if watch)
    state = advance(state, evidence, state.seen + max(0.0, fresh), era, tuning)
    fallen = state.seen - state.changed_at if any(watch and watch.fallen for watch in watches) else None
    share, arms = probe_share(state, evidence, tuning, fallen)
    totals = wider or book.totals.get(backend, {})
    lean = finer.lean if finer else tuning.parent_trials
    flights = {
        method: flight_at(
            piles.get(method), totals.get(method), [k for m, k in offered if m == method], method, setting, lean
        )
        for method in {m: None for m, _ in offered}
    }
    alarm_at = before.alarm_at if before else DEFAULT_ALARM
    return Node(evidence, state, share, arms, flights, requests, alarm_at=alarm_at)


def _fill(snapshot: Snapshot, previous: Snapshot | None, most: int) -> None:
    old = previous.nodes if previous else {}
    elapsed = max(0.0, snapshot.made_at - previous.made_at) if previous else 0.0
    loads = snapshot.book.loads
    wanted: set[NodeKey] = {
        key for key in old if key[0] in snapshot.offered and (key[:4] in loads or not parent_of(key[1]))
    }
    for kind, bands in loads.items():
        if not parent_of(kind[1]) or kind[:2] in snapshot.finer:
            wanted.update((*kind, band) for band in bands)
    made, signatures = 0, _Signatures(snapshot)
    for key in sorted(wanted, key=lambda key: (*_turn(old.get(key)), key)):  # loads of a kind share most of the work
        before = old.get(key)
        signature = signatures.of(key)
        age = snapshot.made_at - before.made_at if before else elapsed
        if before is not None and (made >= most or (before.signature == signature and age < CARRY_S)):
            snapshot.nodes[key] = before
            continue
        node = snapshot.nodes[key] = make_node(snapshot, key, before, age)
        node.signature, node.made_at = signature, snapshot.made_at
        made += 1


def _turn(node: Node | None) -> tuple[bool, float]:
    """Return a node's place among those to be made anew."""
    return (not node.used, node.made_at) if node else (False, 0.0)


class _Signatures:
    """What nodes are made from: one whose signature has stayed need not be made anew."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._offered = {backend: tuple(arms) for backend, arms in snapshot.offered.items()}
        self._eras: dict[tuple[str, str], tuple[int, ...]] = {}
        for (backend, _, task), watch in snapshot.eras.watches.tasks.items():
            self._eras[backend, task] = (*self._eras.get((backend, task), ()), watch.era)

    def of(self, key: NodeKey) -> object:
        """Return the signature of one node."""
        backend, task = key[0], parent_of(key[1]) or key[1]
        costs, counted = self._snapshot.costs.get(backend), self._snapshot.book.signatures.get(key[:4])
        return counted, id(costs), self._offered.get(backend, ()), self._eras.get((backend, task), ())


def _newest_epochs(cells: ByArm) -> dict[str, str]:
    newest: dict[str, tuple[int, str]] = {}
    for (backend, epoch, _, _), found in cells.items():
        newest[backend] = max(newest.get(backend, (-1, "")), (max(bucket.minute for bucket in found), epoch))
    return {backend: epoch for backend, (_, epoch) in newest.items()}


def _offered(
    living: ByArm, costs: Mapping[str, CostTable], arms: Mapping[str, Sequence[Arm]] | None
) -> dict[str, list[ArmKey]]:
    found: dict[str, set[ArmKey]] = defaultdict(set)
    for name, table in costs.items():
        found[name].update((cell.method, cell.k) for cell in table.cells if cell.k > 0)
    for backend, _, method, k in living:
        if k > 0:
            found[backend].add((method, k))
    for name, listed in (arms or {}).items():
        found[name] = {(arm.method, arm.k) for arm in listed if arm.k > 0}
    return {name: sorted(keys) for name, keys in found.items()}


def _lengths(
    arms: Iterable[tuple[str, str, str, int]], offered: Mapping[str, Sequence[ArmKey]]
) -> dict[tuple[str, str], set[int]]:
    lengths: dict[tuple[str, str], set[int]] = defaultdict(set)
    for backend, keys in offered.items():
        for method, k in keys:
            lengths[backend, method].add(k)
    for backend, _, method, k in arms:
        if k > 0:
            lengths[backend, method].add(k)
    return lengths
