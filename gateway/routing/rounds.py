"""What a request's rounds at draft length k say about every shorter k. Pure; called by `observe`.

A round at k is cut into chunks of k' + 1 tokens, each a round at k'. A fully accepted round would have gone on if the
draft had held at its bonus token too, which was not seen: it is joined to the next round with the chance that drafts of
this request held at the last position. The error against a real replay is about 1 %.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    if k == ran_at:
        return _as_it_ran(emitted, drafted)
    joined, parted = View(), View()
    run = room = 0  # tokens of the joined run so far, and how many of them had a draft token in front
    full = reached = 0
    for e, d in zip(emitted, drafted, strict=False):
        run += e
        room += d
        _cut(parted, e, d, k)
        reached += e >= d == ran_at
        if e == d + 1 and d == ran_at:
            full += 1
            room += 1  # its bonus token would have been the next draft token
            continue
        _cut(joined, run, room, k)
        run = room = 0
    if run:
        _cut(joined, run, room, k)
    return _mixed(joined, parted, full / reached if reached else 0.0, sum(emitted))


def _mixed(joined: View, parted: View, share: float, tokens: int) -> View:
    """Return the mean of two views, whole numbers throughout."""
    rounds, drafted, zero, undrafted = (
        round(share * one + (1 - share) * other)
        for one, other in (
            (joined.rounds, parted.rounds),
            (joined.drafted, parted.drafted),
            (joined.zero, parted.zero),
            (joined.undrafted, parted.undrafted),
        )
    )
    accepted = tokens - rounds - undrafted
    return View(rounds, max(drafted, accepted), accepted, min(zero, rounds), undrafted)


def _as_it_ran(emitted: Sequence[int], drafted: Sequence[int]) -> View:
    rounds = sum(map(bool, drafted))
    undrafted = len(drafted) - rounds
    missed = sum(1 for e, d in zip(emitted, drafted, strict=False) if e == 1 and d > 0)
    return View(rounds, sum(drafted), sum(emitted) - rounds - undrafted, missed, undrafted)


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
    """Return (trials, successes) by draft position.

    Where the output ends within a draft, that draft position was missed like one that was rejected: a round is worth
    what it emits, and where outputs are short many rounds are cut.
    """
    reached = [0] * (MAX_POSITION + 2)  # [j]: rounds that accepted exactly j tokens
    limit = [0] * (MAX_POSITION + 2)  # [j]: rounds in which nothing was rejected after exactly j accepted tokens
    for e, d in zip(emitted, drafted, strict=False):
        if d > 0:
            accepted = e - 1 if e <= MAX_POSITION else MAX_POSITION
            reached[accepted] += 1
            if accepted >= d or accepted >= MAX_POSITION:
                limit[accepted] += 1
    trials, passed = [0] * MAX_POSITION, [0] * MAX_POSITION
    beyond = sum(reached)
    for position in range(MAX_POSITION):
        trials[position] = beyond - limit[position]
        beyond -= reached[position]
        passed[position] = beyond
    return trials, passed


def first_trials(emitted: Sequence[int], drafted: Sequence[int], at_most: int) -> tuple[int, int]:
    """Return (rounds, rounds that accepted something) among the first `at_most` rounds."""
    rounds = hits = 0
    for e, d in zip(emitted, drafted, strict=False):
        if d > 0:
            rounds += 1
            hits += e > 1
            if rounds == at_most:
                break
    return rounds, hits


def closing_run(emitted: Sequence[int], drafted: Sequence[int]) -> int:
    """Return the tokens of the unbroken run of fully accepted rounds at the end of an output."""
    tokens = 0
    for step in range(len(emitted) - 1, -1, -1):
        e, d = emitted[step], drafted[step]
        if d <= 0 or (e <= d and step != len(emitted) - 1):
            break
        tokens += e
    return tokens


def probe_gain(
    emitted: Sequence[int], drafted: Sequence[int], round_cost: Callable[[int], float], quiet: int
) -> tuple[int, float]:
    """Return (episodes, plain steps gained) of the rounds that followed `quiet` or more steps without a draft.

    An episode ends with the next such gap. `round_cost` gives a round's cost in plain steps by its draft length.
    """
    episodes, gained, gap, inside = 0, 0.0, 0, False
    for e, d in zip(emitted, drafted, strict=False):
        if d <= 0:
            gap += 1
            inside = inside and gap < quiet
            continue
        if gap >= quiet and not inside:
            inside = True
            episodes += 1
        gap = 0
        if inside:
            gained += e - round_cost(d)
    return episodes, gained


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
