"""What a drafter would have gained on finished answers: chances by position → rounds → a, z, acceptance by position.

Pure. A round drafts token by token along an answer; the chance that its j-th draft is accepted, given the ones before,
is 1 or 0 for greedy answers. For a sampled token x, of probability p under the target and q under the draft, it is
min(1, q/p): rejection sampling emits x in p of all cases and takes it from the draft in min(p, q) of them. To walk
along an answer with these chances is therefore the engine's own process, without running the target again.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

CONTEXTS = (0, 128, 256, 512)
"""Lower edges of the bands of context length (tokens before the round) in which a is told."""


@dataclass(frozen=True, slots=True)
class Chances:
    """One answer and one drafter."""

    task: str
    prompt: int
    """Tokens before the answer."""
    length: int
    """Tokens of the answer."""
    accept: Sequence[Sequence[float]]
    """`accept[s][i]`: chance that draft number s (from 0) of a round that begins at output token i is accepted, given
    those before it; −1: there is no such draft."""


@dataclass(slots=True)
class Sums:
    """Counts over rounds at one draft length."""

    k: int
    rounds: int = 0
    emitted: int = 0
    zero: int = 0
    drafted: int = 0
    undrafted: int = 0
    """Steps without a draft."""
    tried: list[int] = field(default_factory=list)
    taken: list[int] = field(default_factory=list)
    bands: dict[int, list[int]] = field(default_factory=dict)
    """Context band → rounds, tokens emitted."""


class Figures(msgspec.Struct):
    """What is told of one drafter, draft length, temperature and task."""

    k: int
    rounds: int
    undrafted_share: float
    """Share of steps in which nothing was drafted."""
    a: float | None
    """Tokens emitted per round, the target's own one included; null without rounds."""
    z: float | None
    """Share of rounds in which nothing was accepted."""
    tokens_per_step: float
    """Over rounds and steps without a draft alike."""
    drafted_per_round: float
    acceptance: list[float]
    """By draft position, given that all before it were accepted."""
    a_by_context: dict[str, float]
    """Band of tokens before the round → a."""


def walk(chances: Iterable[Chances], k: int, rng: random.Random) -> Sums:
    """Go through the answers in rounds of at most k drafts; as in the engine, none goes beyond the answer's end."""
    sums = Sums(k, tried=[0] * k, taken=[0] * k)
    for one in chances:
        at = 1  # the first token comes with the prompt
        while at < one.length:
            room = min(k, one.length - at - 1, len(one.accept))
            accepted = drafted = 0
            while drafted < room and one.accept[drafted][at] >= 0:
                drafted += 1
            for position in range(drafted):
                sums.tried[position] += 1
                if rng.random() >= one.accept[position][at]:
                    break
                sums.taken[position] += 1
                accepted += 1
            if drafted:
                sums.rounds += 1
                sums.emitted += accepted + 1
                sums.drafted += drafted
                sums.zero += accepted == 0
                band = max(edge for edge in CONTEXTS if edge <= one.prompt + at)
                entry = sums.bands.setdefault(band, [0, 0])
                entry[0] += 1
                entry[1] += accepted + 1
            else:
                sums.undrafted += 1
            at += accepted + 1
    return sums


def figures(sums: Sums) -> Figures:
    """Counts → what is told."""
    steps = sums.rounds + sums.undrafted
    return Figures(
        k=sums.k,
        rounds=sums.rounds,
        undrafted_share=round(sums.undrafted / max(1, steps), 4),
        a=round(sums.emitted / sums.rounds, 4) if sums.rounds else None,
        z=round(sums.zero / sums.rounds, 4) if sums.rounds else None,
        tokens_per_step=round((sums.emitted + sums.undrafted) / max(1, steps), 4),
        drafted_per_round=round(sums.drafted / max(1, sums.rounds), 4),
        acceptance=[round(took / tried, 4) for took, tried in zip(sums.taken, sums.tried, strict=True) if tried],
        a_by_context={f"{edge}+": round(emitted / rounds, 4) for edge, (rounds, emitted) in sorted(sums.bands.items())},
    )


def gain_of(found: Figures, costs: Mapping[int, tuple[float, float]], *, looks: bool) -> float:
    """G = Σ tokens · T_plain / Σ time, from (α, β) by draft length; a step without a draft costs a plain one.

    Rounds draft `drafted_per_round` tokens, which lies between measured lengths: costs are taken along a line between
    the shortest one and k. `looks`: a step in which nothing is drafted has cost the first draft token all the same.
    """
    least = min(costs)
    share = (found.drafted_per_round - least) / (found.k - least) if found.k > least else 1.0
    share = min(1.0, max(0.0, share))
    alpha, beta = (low + (high - low) * share for low, high in zip(costs[least], costs[found.k], strict=True))
    nothing = costs[least][0] if looks else 0.0
    per_step = 1.0 + (1.0 - found.undrafted_share) * (alpha + beta) + found.undrafted_share * nothing
    return found.tokens_per_step / per_step


def hybrid(first: Chances, second: Chances) -> Chances:
    """A drafter that takes the first's draft where it has one, and the second's elsewhere."""
    has = [chance >= 0 for chance in first.accept[0]]
    depth = max(len(first.accept), len(second.accept))
    sources = [first if one else second for one in has]
    rows = [
        [source.accept[number][at] if number < len(source.accept) else -1.0 for at, source in enumerate(sources)]
        for number in range(depth)
    ]
    return Chances(first.task, first.prompt, first.length, rows)
