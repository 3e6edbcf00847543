"""From logits to tokens: one warper for plain and speculative decoding, exact rejection sampling. Called by the core.

The order is: penalties, logit bias, grammar mask, temperature, top-k, top-p, min-p. Under speculation the penalties at
draft position i count the drafts before i, so that every position is warped as plain decoding would have warped it.
Rejection sampling as in Leviathan et al. 2023 (arXiv 2211.17192, algorithm 1).
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from engine.sequence import SamplingParams, TokenLogprob

_NUCLEUS_SPAN = 8.0
_BLOCK = 1024
_BELOW_ONE = math.nextafter(1.0, 0.0)
_COLD = 1e-3
"""Below this temperature logits are divided after their largest has been taken off, so that none overflows."""
_COLDEST = 1e-6
"""Lower temperatures are taken as this one: the same arg max but for gaps that float32 hardly tells from ties."""
_LARGEST = 1e30
"""No penalty raises a logit beyond this: infinities have no softmax."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Draft:
    """Proposed tokens; `probs` [tokens, vocabulary] is what they were drawn from, None where they were certain."""

    tokens: list[int]
    probs: torch.Tensor | None = None
    predicted: bool = False
    """Whether they come from the request's own `prediction`."""
    confidence: list[float] | None = None
    """By position, a calibrated chance that the target accepts, given that it accepted all before; None: not known.

    It may depend on the drafts before its position and on what the position's token was drawn from, never on that
    token: a draft that is cut where an unlikely token came up would no longer leave the distribution as it is.
    """

    def cut(self, length: int) -> None:
        """Keep the first `length` tokens."""
        del self.tokens[length:]
        if self.probs is not None:
            self.probs = self.probs[:length] if length else None
        if self.confidence is not None:
            del self.confidence[length:]


@dataclass(slots=True)
class Verdict:
    """What one verify pass decided: tokens to emit (accepted ones, then one of the target's own)."""

    tokens: list[int]
    accepted: int
    logprobs: list[TokenLogprob] = field(default_factory=list)
    error: str | None = None
    """Why no token could be chosen; ends this request and no other."""


class Grammar(Protocol):
    """What the warper needs of a grammar (`engine.grammar.Grammar`)."""

    def mask(self, logits: torch.Tensor, before: Sequence[int]) -> None:
        """Set the logits of tokens that may not follow the answer and `before` to -inf, in place."""

    def allowed(self, draft: Sequence[int]) -> int:
        """Return how many of the draft's tokens may come, from the first."""

    def forced(self, limit: int) -> list[int]:
        """Return at most `limit` tokens that must come next."""

    def accept(self, tokens: Sequence[int]) -> None:
        """Take emitted tokens into the answer."""


class SamplerState:
    """Random streams, token counts and grammar of one sequence."""

    __slots__ = ("accept", "bonus", "counts", "draft", "grammar", "params", "plain", "prompt", "residual", "task")

    def __init__(
        self,
        params: SamplingParams,
        prompt: Sequence[int],
        seed: int,
        grammar: Grammar | None = None,
        task: str = "",
    ) -> None:
        self.params = params
        self.task = task
        self.grammar = grammar
        self.counts: dict[int, int] = {}
        """Occurrences of each output token."""
        self.prompt = frozenset(prompt) if params.repetition_penalty != 1.0 else frozenset[int]()
        self.plain = params.temperature <= 0 and not _is_processed(params)
        """Whether the next token is the arg max of the raw logits."""
        self.draft = self.accept = self.residual = self.bonus = random.Random()  # noqa: S311 - sampling, not secrets
        if params.temperature > 0:
            streams = [random.Random(f"{seed}/{name}") for name in ("draft", "accept", "residual", "bonus")]  # noqa: S311
            self.draft, self.accept, self.residual, self.bonus = streams

    def count(self, tokens: Sequence[int]) -> None:
        """Take emitted tokens into account."""
        for token in tokens:
            self.counts[token] = self.counts.get(token, 0) + 1
        if self.grammar is not None:
            self.grammar.accept(tokens)


def _is_processed(params: SamplingParams) -> bool:
    return bool(
        params.presence_penalty
        or params.frequency_penalty
        or params.repetition_penalty != 1.0
        or params.logit_bias
        or params.grammar is not None
    )


def warp(logits: torch.Tensor, state: SamplerState, before: Sequence[int]) -> torch.Tensor:
    """Return the processed logits [vocabulary] of one position, a new tensor; `before` are drafts not yet counted."""
    params = state.params
    logits = logits.to(torch.float32, copy=True)
    _penalise(logits, state, before)
    if params.logit_bias:
        ids = torch.tensor(list(params.logit_bias), device=logits.device)
        logits[ids] += torch.tensor(list(params.logit_bias.values()), device=logits.device)
    if state.grammar is not None:
        state.grammar.mask(logits, before)
    if params.temperature > 0:
        if params.temperature < _COLD:
            logits -= logits.max()
        logits /= max(params.temperature, _COLDEST)
        _truncate(logits, params)
    return logits


def _penalise(logits: torch.Tensor, state: SamplerState, before: Sequence[int]) -> None:
    params = state.params
    if params.repetition_penalty != 1.0:
        seen = state.prompt.union(state.counts, before)
        ids = torch.tensor(sorted(seen), dtype=torch.long, device=logits.device)
        hit = logits[ids]
        hit = torch.where(hit > 0, hit / params.repetition_penalty, hit * params.repetition_penalty)
        logits[ids] = hit.clamp_(max=_LARGEST)
    if params.presence_penalty or params.frequency_penalty:
        counts = dict(state.counts)
        for token in before:
            counts[token] = counts.get(token, 0) + 1
        if counts:
            ids = torch.tensor(list(counts), device=logits.device)
            numbers = torch.tensor(list(counts.values()), dtype=torch.float32, device=logits.device)
            logits[ids] -= params.frequency_penalty * numbers + params.presence_penalty


def _truncate(logits: torch.Tensor, params: SamplingParams) -> None:
    """Set logits outside top-k, then top-p, then min-p to -inf, in place; the most likely token always stays."""
    if 0 < params.top_k < logits.shape[-1]:
        least = torch.topk(logits, params.top_k).values[-1]
        logits.masked_fill_(logits < least, float("-inf"))
    if params.top_p < 1.0:
        logits.masked_fill_(logits < _nucleus_edge(logits, params.top_p), float("-inf"))
    if params.min_p > 0.0:
        logits.masked_fill_(logits < logits.max() + math.log(params.min_p), float("-inf"))


def _nucleus_edge(logits: torch.Tensor, top_p: float) -> float:
    """The smallest logit in the smallest set of likeliest tokens whose probability reaches `top_p`.

    Only logits within `_NUCLEUS_SPAN` of the largest are sorted; where they do not reach `top_p`, all are.
    """
    total = torch.logsumexp(logits, dim=-1)
    for candidates in (logits[logits > logits.max() - _NUCLEUS_SPAN], logits):
        ordered = torch.sort(candidates, descending=True).values
        mass = torch.cumsum(torch.exp(ordered - total).to(torch.float64), dim=-1)
        size = int(torch.searchsorted(mass, top_p)) + 1
        if size <= len(candidates):
            break
    return float(ordered[min(size, len(ordered)) - 1])


def draw(probs: torch.Tensor, stream: random.Random) -> int:
    """Draw an index by inverting the cumulative distribution; an index of probability 0 is never drawn."""
    start, aim = 0, stream.random()
    if len(probs) > _BLOCK:
        blocks = torch.stack([part.sum(dtype=torch.float64) for part in torch.split(probs, _BLOCK)])
        start, aim = _invert(blocks, aim)
        start *= _BLOCK
        probs = probs[start : start + _BLOCK]
    return start + _invert(probs, aim)[0]


def _invert(weights: torch.Tensor, aim: float) -> tuple[int, float]:
    """Return the index in which the share `aim` of the total falls, and the share of that index that it leaves."""
    mass = torch.cumsum(weights.to(torch.float64), dim=-1)
    total = float(mass[-1])
    if not 0 < total < math.inf:
        raise ArithmeticError("no token has a probability")
    place = aim * total
    index = int(torch.searchsorted(mass, place, right=True))
    if index >= len(weights):  # the product was rounded up to the total
        index = int(torch.nonzero(weights)[-1])
    width = float(weights[index])
    within = (place - float(mass[index]) + width) / width
    return index, min(max(within, 0.0), _BELOW_ONE)


def residual(target: torch.Tensor, draft: torch.Tensor | None, token: int) -> torch.Tensor:
    """Return (p − q)+ normalised, or p where nothing is left of it; `draft` None is the certain draft of `token`."""
    if draft is None:
        rest = target.clone()
        rest[token] = 0.0
    else:
        rest = (target - draft).clamp_(min=0.0)
    mass = rest.sum()
    return rest / mass if mass > 0 else target


def verify(logits: torch.Tensor, draft: Draft, state: SamplerState) -> tuple[list[int], int]:
    """Return the tokens to emit and how many drafts were accepted; logits are [drafts + 1, vocabulary]."""
    emitted: list[int] = []
    for position in range(len(draft.tokens) + 1):
        warped = warp(logits[position], state, emitted)
        proposed = draft.tokens[position] if position < len(draft.tokens) else None
        if state.params.temperature <= 0:
            token = int(warped.argmax())
            if warped[token] == -math.inf:
                raise ArithmeticError("no token is allowed")
            emitted.append(token)
            if token != proposed:
                return emitted, position
            continue
        target = torch.softmax(warped, dim=-1)
        if proposed is None:
            emitted.append(draw(target, state.bonus))
            return emitted, position
        source = draft.probs[position].to(target.device) if draft.probs is not None else None
        certainty = float(source[proposed]) if source is not None else 1.0
        if state.accept.random() * certainty < float(target[proposed]):
            emitted.append(proposed)
            continue
        emitted.append(draw(residual(target, source, proposed), state.residual))
        return emitted, position
    raise AssertionError("the last position has no draft token and always returns")


def argmax(logits: torch.Tensor) -> list[int]:
    """Most likely token of each row; `max` is several times faster than `argmax` on a CPU in bfloat16."""
    tokens: list[int] = logits.max(dim=-1).indices.tolist()
    return tokens


def logprobs_of(logits: torch.Tensor, tokens: Sequence[int], top: int) -> list[TokenLogprob]:
    """Return log-probabilities from the raw logits [tokens, vocabulary] of the emitted tokens."""
    scores = torch.log_softmax(logits[: len(tokens)].to(torch.float32), dim=-1)
    rows = []
    for position, token in enumerate(tokens):
        best: list[tuple[int, float]] = []
        if top:
            values, ids = torch.topk(scores[position], min(top, scores.shape[-1]))
            best = list(zip(ids.tolist(), values.tolist(), strict=True))
        rows.append(TokenLogprob(token, float(scores[position, token]), best))
    return rows


class Sampler:
    """Verifies a whole step. Greedy rows without processing share one arg max and one transfer."""

    def verify(
        self,
        logits: torch.Tensor,
        rows: Sequence[tuple[SamplerState, Draft]],
    ) -> list[Verdict]:
        """Logits are [Σ (drafts + 1), vocabulary], the rows' positions behind one another."""
        if not all(state.plain and state.params.logprobs is None for state, _ in rows):
            logits = logits.cpu()  # off a GPU in one transfer: choosing token by token would wait for each
        simple = any(state.plain for state, _ in rows)
        best: list[int] = argmax(logits) if simple else []
        verdicts = []
        start = 0
        for state, draft in rows:
            end = start + len(draft.tokens) + 1
            try:
                if state.plain:
                    verdict = Verdict(*_match(best[start:end], draft.tokens))
                else:
                    verdict = Verdict(*verify(logits[start:end], draft, state))
                if state.params.logprobs is not None:
                    verdict.logprobs = logprobs_of(logits[start:end], verdict.tokens, state.params.logprobs)
            except Exception as error:  # whatever one request's settings cause must not end the others
                log.exception("a request's next token could not be chosen")
                verdict = Verdict([], 0, error=f"the next token could not be chosen: {error}")
            verdicts.append(verdict)
            start = end
        return verdicts


def _match(best: list[int], drafts: list[int]) -> tuple[list[int], int]:
    accepted = 0
    for token, draft in zip(best, drafts, strict=False):
        if token != draft:
            break
        accepted += 1
    return best[: accepted + 1], accepted
