"""What rounds cost on this machine, and what a method gains on real answers: timed in alternating pairs.

Called by evaluation, which needs a machine with nothing else to do.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.distill.corpus import Text
from engine.messages import CostTable, Speculation, SpeculativeDecodingMetrics
from engine.models import LoadedModel
from engine.sequence import GenerateRequest, SamplingParams

_RESAMPLES = 2000
_CONTEXT = 200
"""Tokens of context at which costs are measured: what a held-out prompt and half of its answer have."""


class Cost(msgspec.Struct):
    """A round's costs in plain steps of the same batch."""

    method: str
    batch: int
    k: int
    alpha: float
    """T_draft / T_plain."""
    beta: float
    """T_verify / T_plain − 1."""
    plain_ms: float


class Gain(msgspec.Struct):
    """Time of plain decoding over that of a method, for the same tokens."""

    gain: float
    low: float
    """95 % bootstrap interval over prompts."""
    high: float
    pairs: int
    a: float | None
    """Tokens emitted per round that drafted, as the engine counted while it was timed; None without such rounds."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """One answer as it was decoded."""

    seconds: float
    """From the first token to the last."""
    rounds: int
    """Rounds that drafted."""
    accepted: int
    """Draft tokens accepted in them."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One prompt decoded both ways."""

    task: str
    plain: Decoded
    method: Decoded


def make_core(target: LoadedModel, draft: LoadedModel | None, head: str | None, *, batch: int) -> EngineCore:
    """A core that measures: no profile of its own, no reuse of prefixes."""
    config = EngineConfig(
        max_batch=batch, kv_tokens=batch * 1024, draft_head=head, profile=False, prefix_reuse=False, max_k=8
    )
    return EngineCore(target, config, draft)


def costs(core: EngineCore, batches: Sequence[int], ks: Sequence[int]) -> list[Cost]:
    """α and β by method, batch and k, each from medians of interleaved plain, verify and draft steps."""
    table: CostTable = core.measure(tuple(batches), tuple(ks), _CONTEXT)
    return [
        Cost(
            cell.method,
            cell.batch,
            cell.k,
            round(cell.draft_s / cell.plain_s, 4),
            round(cell.verify_s / cell.plain_s - 1.0, 4),
            round(cell.plain_s * 1e3, 3),
        )
        for cell in table.cells
        if cell.k in ks and cell.batch in batches and cell.plain_s > 0
    ]


def pairs(
    core: EngineCore, texts: Sequence[Text], arms: dict[str, int], *, tokens: int, tell: Callable[[], None]
) -> dict[str, list[Pair]]:
    """Decode every prompt plainly and by each method at its draft length, in turns that change who goes first."""
    found: dict[str, list[Pair]] = {method: [] for method in arms}
    order = [("plain", 0), *arms.items()]
    for text in texts:
        decoded = {method: _decode(core, text, method, k, tokens) for method, k in order}
        for method in arms:
            found[method].append(Pair(text.entry.task, decoded["plain"], decoded[method]))
        order = [*order[1:], order[0]]
        tell()
    return found


def _decode(core: EngineCore, text: Text, method: str, k: int, tokens: int) -> Decoded:
    """Decode a greedy answer of `tokens` tokens."""
    prompt = text.tokens[: text.entry.prompt].tolist()
    params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
    core.add(GenerateRequest(f"{method}-{text.entry.id}", prompt, params, Speculation(method, k)))
    first = last = 0.0
    spec: SpeculativeDecodingMetrics | None = None
    while core.has_work():
        outputs = core.step()
        last = time.perf_counter()
        if outputs and not first:
            first = last
        for output in outputs:
            if output.metrics is not None:  # with the last token
                spec = output.metrics.speculative_decoding
    if spec is None:
        return Decoded(last - first, 0, 0)
    return Decoded(last - first, spec.num_spec_steps, spec.num_accepted_draft_tokens)


def gain(found: Sequence[Pair], seed: int = 0) -> Gain:
    """Σ plain time over Σ time of the method, prompts being the sampling unit."""
    rng = random.Random(seed)  # noqa: S311 - no secrets
    draws = sorted(_ratio([rng.choice(found) for _ in found]) for _ in range(_RESAMPLES))
    low, high = draws[int(0.025 * _RESAMPLES)], draws[int(0.975 * _RESAMPLES)]
    rounds, accepted = sum(pair.method.rounds for pair in found), sum(pair.method.accepted for pair in found)
    a = round(1 + accepted / rounds, 4) if rounds else None
    return Gain(round(_ratio(found), 4), round(low, 4), round(high, 4), len(found), a)


def _ratio(found: Sequence[Pair]) -> float:
    return sum(pair.plain.seconds for pair in found) / max(1e-9, sum(pair.method.seconds for pair in found))
