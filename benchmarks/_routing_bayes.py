"""Greedy Bayes with the true prior on made-up traffic: what in-flight control could close. Used by `routing_figures`.

The controller knows how the requests of a task were made (but not which request this is), keeps the exact posterior of
the request's state round by round, on a grid, and always takes the draft length with the highest expected gain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cli.simulation.made_up import TaskSpec
from cli.simulation.replay import Table

Grid = NDArray[np.float64]
STATIC = np.linspace(-2.4, 2.4, 13)
"""Points of a request's own level, in standard deviations."""
MOVING = np.linspace(-2.0, 2.0, 5)
"""Points of what changes within a request."""
KEEP = 0.98
"""Of the walk in `made_up`, per token."""
CHANGE = 0.03
"""Chance per token that a stretch of copying or not ends, in `made_up`."""


@dataclass(slots=True)
class Chain:
    """A hidden Markov chain over one request: `prior[i, j]`, acceptance `p[i, j]`, `moves[i, j, j']` per token."""

    prior: Grid
    p: Grid
    moves: Grid
    decay: float
    joined: bool


def chain_of(spec: TaskSpec) -> Chain:
    """Return the chain that `make_traces` draws a request of `spec` from (repetition loops aside)."""
    weight = np.exp(-0.5 * STATIC**2)
    weight /= weight.sum()
    if spec.copied is not None:
        share = 1 / (1 + np.exp(-(spec.copied + spec.spread * STATIC)))
        both = np.stack([1 - share, share], axis=1)
        moves = (1 - CHANGE) * np.eye(2)[None] + CHANGE * both[:, None, :]
        p = np.broadcast_to(np.array([spec.acceptance, 0.95]), both.shape)
        return Chain(weight[:, None] * both, p, moves, 1.0, True)
    walk = np.exp(-0.5 * MOVING**2)
    gap = MOVING[None, :] - KEEP * MOVING[:, None]
    step = np.exp(-0.5 * gap**2 / (1 - KEEP**2 + (MOVING[1] - MOVING[0]) ** 2 / 16))
    step /= step.sum(axis=1, keepdims=True)
    centre = np.log(spec.acceptance / (1 - spec.acceptance))
    odds = centre + spec.spread * STATIC[:, None] + spec.wander * MOVING[None, :]
    moves = np.broadcast_to(step, (len(STATIC), *step.shape))
    return Chain(weight[:, None] * walk / walk.sum(), 1 / (1 + np.exp(-odds)), moves, spec.decay, spec.joined)


class Mixture:
    """The posterior of a request over the ways in which its task's requests are made."""

    def __init__(self, chains: Sequence[Chain], worth: Sequence[tuple[int, int]]) -> None:
        self._chains = chains
        self._beliefs = [chain.prior / len(chains) for chain in chains]
        self._longest = max(k for k, _ in worth)

    def expected(self) -> Grid:
        """Return the tokens that a round of 0, 1, … draft tokens is expected to emit."""
        alive = np.zeros(self._longest + 1)
        for chain, belief in zip(self._chains, self._beliefs, strict=True):
            now = belief
            alive[0] += now.sum()
            for position in range(self._longest):
                now = now * chain.p * (1.0 if chain.joined else chain.decay**position)
                alive[position + 1] += now.sum()
                if chain.joined:
                    now = _move(now, chain)
        total: Grid = np.cumsum(alive)
        return total

    def learn(self, emitted: int, drafted: int) -> None:
        """Take in one round (or, with nothing drafted, a plain step)."""
        for i, chain in enumerate(self._chains):
            belief = self._beliefs[i]
            for position in range(min(emitted, drafted)):
                p = chain.p * (1.0 if chain.joined else chain.decay**position)
                belief = belief * (p if position < emitted - 1 else 1 - p)
                if chain.joined and position < emitted - 1:
                    belief = _move(belief, chain)
            for _ in range(1 if chain.joined else emitted):
                belief = _move(belief, chain)
            self._beliefs[i] = belief
        total = sum(float(belief.sum()) for belief in self._beliefs)
        self._beliefs = [belief / total for belief in self._beliefs]


def _move(belief: Grid, chain: Chain) -> Grid:
    moved: Grid = np.matmul(belief[:, None, :], chain.moves)[:, 0, :]
    return moved


def greedy_seconds(table: Table, specs: Sequence[TaskSpec], indices: Sequence[int]) -> Grid:
    """Return the seconds of these requests of the table under greedy Bayes."""
    chains: dict[str, list[Chain]] = {}
    for spec in specs:
        chains.setdefault(spec.name, []).append(chain_of(spec))
    return np.array([_greedy(table, i, chains[trace.task]) for i, trace in ((i, table.traces[i]) for i in indices)])


def _greedy(table: Table, index: int, chains: Sequence[Chain]) -> float:
    trace, costs = table.traces[index], table.costs
    lines = [costs.round_line(d) for d in range(table.lengths[-1] + 1)]
    known = Mixture(chains, [(k, 0) for k in table.lengths])
    seconds, at, size = 0.0, 0, len(trace.emitted)
    while at < size:
        kv = trace.prompt_tokens + at
        times = [base + per_kv * kv for base, per_kv in lines]
        tokens = known.expected()
        k = max(table.lengths, key=lambda k: tokens[k] / times[k])
        d = k if trace.drafted is None else min(k, trace.drafted[at])
        e = min(trace.emitted[at], d + 1, size - at)
        known.learn(e if at + e < size else min(e, d), d)
        seconds += times[d]
        at += e
    return seconds
