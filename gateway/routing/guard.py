"""The p99 guard: which arms are slower at p99 than a rule allows. Pure; advanced by `build_snapshot`, read by `decide`.

An arm is violated in a window where the lower 95 % bound of its p99 lies above the budget, or above the allowed ratio
times the upper 95 % bound of plain's (pooled over tasks in the load band: probes will not fill 299 per cell). Violated
in two disjoint windows running, it becomes ineligible, and with it every longer draft of its method; it comes back
after a cool-down (doubling each time) for a share of requests until 299 new ones have decided. A window lasts until
there is enough to judge it by. Point ratios of p99 are false in a quarter of windows or more; these bounds in fewer
than 1 in 1,000.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from gateway.histogram import LatencyCell, LogHistogram
from gateway.policy.schema import P99
from gateway.routing.book import ALL
from gateway.types import CellKey

Q, CONFIDENCE, NEEDED = 0.99, 0.95, 299
MOST_COOL_DOWN_S = 86_400.0
TRIAL_SHARE = 0.2
"""Share of requests that an arm gets on trial."""
Verdict = Literal["no_data", "ok", "violated"]
Status = Literal["no_data", "ok", "suspect", "ineligible", "trial"]
Place = tuple[str, str, int, str, str, int]
"""(backend, method, k, task, context band, load band)."""


@dataclass(slots=True)
class Standing:
    """One arm at one place under one set of thresholds."""

    status: Status = "no_data"
    until: float = 0.0
    """Unix time at which an ineligible arm goes on trial."""
    cool_down: float = 0.0
    text: str = ""
    """The numbers behind it."""
    opened: float = 0.0
    """Unix time at which the present window began."""
    marks: dict[Place, LogHistogram] = field(default_factory=dict)
    """Histograms, of the arm and of plain at every level, as the present window began."""


@dataclass(slots=True)
class Guard:
    """Standings of all arms under all thresholds in use. Carried from snapshot to snapshot."""

    wanted: set[P99] = field(default_factory=set)
    """Thresholds that rules have asked about."""
    standings: dict[tuple[P99, Place], Standing] = field(default_factory=dict)

    def standing(self, rule: P99, place: Place) -> Standing | None:
        """Return the standing of an arm; thresholds asked about for the first time are looked at from then on."""
        self.wanted.add(rule)
        return self.standings.get((rule, place))

    def advance(self, history: Iterable[LatencyCell], now: float) -> None:
        """Close the windows that are due and judge them."""
        if not self.wanted:
            return
        cells = list(history)
        for rule in self.wanted:
            totals = _totals(cell for cell in cells if cell.metric == rule.metric)
            for place in [place for place in totals if place[2] > 0 and place[3] != ALL and place[4] != ALL]:
                standing = self.standings.setdefault((rule, place), Standing(opened=now))
                _advance(standing, rule, place, totals, now)


def _advance(standing: Standing, rule: P99, place: Place, totals: Mapping[Place, LogHistogram], now: float) -> None:
    if standing.status == "ineligible":
        if now >= standing.until:
            standing.status = "trial"
            _open(standing, place, totals, now)
        return
    fresh = _since(standing, place, totals)
    decided = fresh.count >= NEEDED if standing.status == "trial" else now - standing.opened >= rule.window
    if not decided and standing.marks:
        return
    standing.marks.setdefault(place, LogHistogram())
    verdict, text = judge(rule, _pooled(standing, place, totals), _plain(standing, place, totals))
    if verdict == "violated" and standing.status in ("suspect", "trial"):
        standing.cool_down = min(MOST_COOL_DOWN_S, max(rule.window, 2 * standing.cool_down))
        standing.status, standing.until, standing.text = "ineligible", now + standing.cool_down, text
    elif verdict == "violated":
        standing.status, standing.text = "suspect", text
    elif verdict == "ok":
        standing.status, standing.text = "ok", text
    else:
        standing.text = text
        return
    _open(standing, place, totals, now)


def judge(rule: P99, arm: LogHistogram, plain: LogHistogram) -> tuple[Verdict, str]:
    """Return the verdict over one window, and its numbers in words."""
    low = arm.lower_bound(Q, CONFIDENCE) if arm.count >= NEEDED else None
    if low is None:
        return "no_data", f"p99 {rule.metric} no_data ({arm.count} of {NEEDED} requests)"
    high = plain.upper_bound(Q, CONFIDENCE)
    text = f"p99 {rule.metric} {1e3 * (arm.quantile(Q) or 0.0):.1f} ms (at least {1e3 * low:.1f})"
    if rule.budget is not None and low > rule.budget:
        return "violated", f"{text} > budget {1e3 * rule.budget:.1f} ms ({arm.count} requests)"
    if rule.max_ratio_to_plain is not None:
        if high is None:
            return "no_data", f"{text}, plain no_data ({plain.count} of {NEEDED} requests)"
        if low > rule.max_ratio_to_plain * high:
            return "violated", f"{text} > {rule.max_ratio_to_plain:g} x plain's (at most {1e3 * high:.1f} ms)"
    return "ok", text


def _totals(cells: Iterable[LatencyCell]) -> dict[Place, LogHistogram]:
    """Return histograms by place, and by the parents: any context; any task and context."""
    totals: dict[Place, LogHistogram] = {}
    for cell in cells:
        for place in _levels(_place(cell.key)):
            totals.setdefault(place, LogHistogram()).merge(cell.histogram)
    return totals


def _place(key: CellKey) -> Place:
    return (key.backend, key.method, key.k, key.task, key.context, key.load)


def _levels(place: Place) -> tuple[Place, Place, Place]:
    backend, method, k, task, _, load = place
    return place, (backend, method, k, task, ALL, load), (backend, method, k, ALL, ALL, load)


def _plain_place(place: Place) -> Place:
    return (place[0], "plain", 0, ALL, ALL, place[5])


def _open(standing: Standing, place: Place, totals: Mapping[Place, LogHistogram], now: float) -> None:
    """Begin a new window: what was counted so far is of the past."""
    standing.opened = now
    kept = (*_levels(place), *(p for p in totals if p[1:] == _plain_place(place)[1:]))
    standing.marks = {level: _copy(totals[level]) for level in kept if level in totals}


def _copy(histogram: LogHistogram) -> LogHistogram:
    return LogHistogram(histogram.counts())


def _since(standing: Standing, place: Place, totals: Mapping[Place, LogHistogram]) -> LogHistogram:
    """Return what has been counted at `place` in the present window."""
    total, mark = totals.get(place), standing.marks.get(place)
    if total is None or mark is None:
        return total or LogHistogram()
    before = mark.counts()
    return LogHistogram({i: n for i, count in total.counts().items() if (n := count - before.get(i, 0)) > 0})


def _pooled(standing: Standing, place: Place, totals: Mapping[Place, LogHistogram]) -> LogHistogram:
    """Return the window's histogram of the arm, of the narrowest level that has enough."""
    found = LogHistogram()
    for level in _levels(place):
        found = _since(standing, level, totals)
        if found.count >= NEEDED:
            break
    return found


def _plain(standing: Standing, place: Place, totals: Mapping[Place, LogHistogram]) -> LogHistogram:
    """Return plain's histogram over all tasks in the load band: of the same backend, else of any (two pools)."""
    own = _since(standing, _plain_place(place), totals)
    if own.count >= NEEDED:
        return own
    pooled = LogHistogram()
    for other in [p for p in totals if p[1:] == _plain_place(place)[1:]]:
        pooled.merge(_since(standing, other, totals))
    return pooled
