"""Made-up acceptance traces with a known truth, for tests, benchmarks and for trying a policy without any recording."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cli.simulation.traces import Trace


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """How one made-up task behaves."""

    name: str
    acceptance: float
    """Mean acceptance probability of a draft token at the first position."""
    spread: float = 0.5
    """Standard deviation between requests, in log odds."""
    wander: float = 0.3
    """Standard deviation within a request, in log odds; changes over about 50 tokens."""
    decay: float = 1.0
    """Factor on the acceptance for each further draft position (only where `joined` is false)."""
    joined: bool = True
    """Whether a draft that holds at one position holds at the next (copying); else rounds are independent."""
    undrafted: float = 0.0
    """Share of positions at which the drafter proposes nothing."""
    loops: float = 0.0
    """Share of requests that end in a repetition loop."""
    copied: float | None = None
    """Mean log odds of the share of an output that is copied (spread: `spread`); copying holds with 95 %, the rest with
    `acceptance`, and changes about every 33 tokens. None: no such stretches."""
    tokens: float = 200.0
    """Median output length; log-normal with σ = `tail`."""
    tail: float = 0.7
    least: int = 4
    """Shortest output."""
    prompt: float = 400.0
    """Median prompt length; log-normal with σ = 0.6."""


def make_traces(specs: list[TaskSpec], per_task: int, seed: int, *, cap: int = 1024) -> list[Trace]:
    """Return `per_task` requests of each task; the same seed gives the same traces."""
    rng = np.random.default_rng([seed, 77])
    return [_make(spec, f"{spec.name}-{i}", rng, cap) for spec in specs for i in range(per_task)]


def _make(spec: TaskSpec, name: str, rng: np.random.Generator, cap: int) -> Trace:
    size = int(np.clip(spec.tokens * np.exp(spec.tail * rng.standard_normal()), spec.least, cap))
    prompt = int(np.clip(spec.prompt * np.exp(0.6 * rng.standard_normal()), 1, 60_000))
    if spec.copied is not None:
        return Trace(
            name, spec.name, spec.name, prompt, _tuple(_joined(_copying(spec, spec.copied, size, rng), rng)), None
        )
    log_odds = np.log(spec.acceptance / (1 - spec.acceptance)) + spec.spread * rng.standard_normal()
    odds = log_odds + spec.wander * _wandering(size, rng)
    if rng.random() < spec.loops:
        odds[size // 4 :] = 6.0
    p = 1 / (1 + np.exp(-odds))
    emitted = _joined(p, rng) if spec.joined else _independent(p, spec.decay, rng)
    drafted = None
    if spec.undrafted > 0:
        nothing = rng.random(size) < spec.undrafted
        drafted = tuple(int(d) for d in np.where(nothing, 0, 16))
    return Trace(name, spec.name, spec.name, prompt, _tuple(emitted), drafted)


def _tuple(values: NDArray[np.int64]) -> tuple[int, ...]:
    return tuple(values.tolist())


def _copying(spec: TaskSpec, mean: float, size: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return acceptance by position of an output that copies in stretches."""
    share = 1 / (1 + np.exp(-(mean + spec.spread * rng.standard_normal())))
    changes, draws = rng.random(size) < 0.03, rng.random(size) < share
    copies = np.empty(size, dtype=bool)
    now = bool(draws[0])
    for i in range(size):
        now = bool(draws[i]) if changes[i] else now
        copies[i] = now
    return np.where(copies, 0.95, spec.acceptance)


def _wandering(size: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return a stationary autoregressive walk with unit variance."""
    noise = rng.standard_normal(size)
    walk = np.empty(size)
    level = noise[0]
    keep, scale = 0.98, np.sqrt(1 - 0.98**2)
    for i in range(size):
        level = keep * level + scale * noise[i]
        walk[i] = level
    return walk


def _joined(p: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.int64]:
    holds = rng.random(len(p)) < p
    emitted = np.ones(len(p), dtype=np.int64)
    run = 0
    for i in range(len(p) - 1, -1, -1):
        run = run + 1 if holds[i] else 0
        emitted[i] = 1 + run
    return emitted


def _independent(p: NDArray[np.float64], decay: float, rng: np.random.Generator) -> NDArray[np.int64]:
    emitted = np.ones(len(p), dtype=np.int64)
    alive = np.ones(len(p), dtype=bool)
    for position in range(24):
        alive &= rng.random(len(p)) < p * decay**position
        emitted += alive
    return emitted
