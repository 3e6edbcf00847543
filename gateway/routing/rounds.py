"""What a request's rounds at draft length k say about every shorter k. Pure; called by `observe`.

A fully accepted round would have gone on: it is joined to the next one, and the joined run is cut into chunks of k' + 1
tokens, each a round at k'. The error against a real replay is ≤ 1–2 % for n-gram drafts and ≤ 4 % for EAGLE's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

DRAFT_LENGTHS = (1, 2, 4, 8, 16)
"""Lengths that are scored where the decision did not say which ones were on offer."""
MAX_POSITION = 16
"""Draft positions whose acceptance is counted one by one."""


@dataclass(slots=True)
class View:
    """Sums over one request as it ran, or would have run, at one draft length."""

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    zero: int = 0
    undrafted: int = 0


def view_at(emitted: Sequence[int], drafted: Sequence[int], ran_at: int, k: int) -> View:
    """Return the view at `k` ≤ `ran_at` of steps that emitted and drafted this many tokens each."""
    view = View()
    run = room = 0  # tokens of the joined run so far, and how many of them had a draft token in front
    for e, d in zip(emitted, drafted, strict=False):
        run += e
        room += d
        if e == d + 1 and d == ran_at and k < ran_at:
            room += 1  # its bonus token would have been the next draft token
            continue
        _cut(view, run, room, k)
        run = room = 0
    if run:
        _cut(view, run, room, k)
    return view


def view_of_histogram(histogram: Sequence[int], undrafted: int, ran_at: int, k: int) -> View:
    """Return the view at `k` where only the count of rounds by accepted tokens is known (no joining is possible)."""
    view = View(undrafted=undrafted)
    for accepted, count in enumerate(histogram):
        if count:
            one = View()
            _cut(one, accepted + 1, ran_at, k)
            view.rounds += one.rounds * count
            view.drafted += one.drafted * count
            view.accepted += one.accepted * count
            view.zero += one.zero * count
            view.undrafted += one.undrafted * count
    return view


def position_counts(emitted: Sequence[int], drafted: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return (trials, successes) by draft position; the last round's end is a cut, not a rejection, and is left out."""
    trials = [0] * MAX_POSITION
    passed = [0] * MAX_POSITION
    last = len(emitted) - 1
    for step, (e, d) in enumerate(zip(emitted, drafted, strict=False)):
        if d > 0:
            accepted = min(e - 1, d, MAX_POSITION)
            for position in range(accepted):
                trials[position] += 1
                passed[position] += 1
            if accepted < min(d, MAX_POSITION) and step != last:
                trials[accepted] += 1
    return trials, passed


def _cut(view: View, tokens: int, room: int, k: int) -> None:
    """Cut a run of `tokens`, of which `room` had a draft, into rounds at `k` and add them to `view`."""
    while tokens > 0:
        d = min(k, room)
        if d <= 0:
            view.undrafted += 1
            tokens -= 1
            room -= 1
            continue
        e = min(tokens, d + 1)
        view.rounds += 1
        view.drafted += d
        view.accepted += e - 1
        view.zero += e == 1
        tokens -= e
        room -= e
