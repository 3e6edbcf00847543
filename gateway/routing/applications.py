"""Applications below a task, where they predict acceptance better than the task does. Pure; called by `snapshot`.

Requests of an application (an API key with its system prompt) are counted twice, under the task and under
`task@application`. Whether a task falls into applications is tested at each refresh: their first-position acceptance,
each with the error that its requests show, must differ by more than chance (W. G. Cochran, Biometrics 10, 1954; one in
a hundred false). How much they differ (R. DerSimonian, N. Laird, Control. Clin. Trials 7, 1986) says how far an
application is drawn towards its task. An application of which too little is known, or a task that does not fall apart,
is decided by the task.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Container
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.routing.stats import Pile, merged

if TYPE_CHECKING:
    from gateway.routing.book import Book

MARK = "@"
LEAST_REQUESTS = 8.0
"""Requests with rounds before an application may be decided by itself."""
CHANCE_Z = 2.326
"""One in a hundred, one-sided."""
SPREAD, SPREAD_REQUESTS = 0.2, 4.0
"""Standard deviation between requests assumed beforehand, and what it weighs in requests."""
NARROWEST, WIDEST = 0.03, 0.5
"""Bounds of the standard deviation between applications, as a share of the acceptance."""


@dataclass(frozen=True, slots=True)
class Finer:
    """An application that is decided by itself."""

    spread: float
    """Standard deviation between the applications of its task, as a share of the acceptance."""
    lean: float
    """What the task weighs in the application's acceptance, in trials."""


def label(task: str, application: str) -> str:
    """Return the name under which an application's requests of a task are counted."""
    return f"{task}{MARK}{application}"


def parent_of(task: str) -> str:
    """Return the task of an application's label, empty where it is no label."""
    before, mark, _ = task.partition(MARK)
    return before if mark else ""


def finer_of(book: Book, backends: Container[str]) -> dict[tuple[str, str], Finer]:
    """Return the applications that are to be decided by themselves, by (backend, label)."""
    tasks: dict[tuple[str, str, str], dict[str, list[Pile]]] = defaultdict(lambda: defaultdict(list))
    for (backend, task, _, _), piles in book.piles.items():
        parent = parent_of(task)
        if parent and backend in backends:
            for method, pile in piles.items():
                tasks[backend, parent, method][task].append(pile)
    found: dict[tuple[str, str], Finer] = {}
    for (backend, _, _), children in tasks.items():
        means = {child: _mean(piles) for child, piles in children.items()}
        known = {child: mean for child, mean in means.items() if mean is not None}
        finer = _apart(list(known.values()))
        if finer is not None:
            found |= {(backend, child): finer for child in known}
    return found


def _mean(piles: list[Pile]) -> tuple[float, float] | None:
    """Return first-position acceptance and the variance of its mean, by request; None after too few of them."""
    layout = piles[0].layout
    total = merged(layout, [(pile, 1.0) for pile in piles]).revealing(1)
    n, t, s, tt, st, ss = (float(total[layout.index[name]]) for name in ("sn", "bt", "bs", "btt", "bst", "bss"))
    if n < LEAST_REQUESTS or t <= 0:
        return None
    p = s / t
    effective = t * t / tt
    per_request = effective * max(0.0, ss - 2 * p * st + p * p * tt) / t**2
    shrunk = (effective * per_request + SPREAD_REQUESTS * SPREAD**2) / (effective + SPREAD_REQUESTS)
    return p, shrunk / effective


def _apart(means: list[tuple[float, float]]) -> Finer | None:
    """Return how applications differ, None where chance explains it."""
    df = len(means) - 1
    if df < 1:
        return None
    weights = [1 / variance for _, variance in means]
    total = sum(weights)
    mean = sum(w * p for w, (p, _) in zip(weights, means, strict=True)) / total
    q = sum(w * (p - mean) ** 2 for w, (p, _) in zip(weights, means, strict=True))
    limit = df * (1 - 2 / (9 * df) + CHANCE_Z * math.sqrt(2 / (9 * df))) ** 3
    if q <= limit or not 0 < mean < 1:
        return None
    between = (q - df) / (total - sum(w * w for w in weights) / total)
    return Finer(
        min(WIDEST, max(NARROWEST, math.sqrt(between) / mean)), min(400.0, max(4.0, mean * (1 - mean) / between))
    )
