"""Chances of acceptance of a draft on held-out answers, from what the corpus keeps of them. Called by evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional

from engine.distill.corpus import Text
from engine.distill.head import FeatureHead
from engine.distill.rounds import Chances
from engine.models import LoadedModel
from engine.spec_decode.eagle import FLOOR
from engine.spec_decode.ngram import MAX_N, NgramIndex, copy_from


class HeadJudge:
    """What the feature-fed head would draft at every position, by its own unrolled pass."""

    def __init__(self, head: FeatureHead, target: LoadedModel, depth: int) -> None:
        """`depth` is the longest draft."""
        self._head = head
        self._target = target
        self._depth = depth
        self._places = torch.full((target.vocab_size,), -1)
        self._places[head.vocab] = torch.arange(len(head.vocab))

    @torch.inference_mode()
    def chances(self, text: Text) -> Chances:
        """Draft number s of a round from output token i is the unrolled pass's step s + 1 at that token."""
        entry = text.entry
        said = text.tokens[entry.prompt :]
        # a state at position t drafts token t + 2: of output token i ≥ 1 it is position prompt + i − 2
        first = entry.prompt - 1
        steps = self._head.unrolled(text.tokens[None, 1:-1], text.features[None, :-1], self._depth, first)
        rows, sure = [], []
        for logits in steps:
            rows.append([-1.0, *self._one(logits[0], text, said[1:]).tolist()])
            sure.append([1.0, *torch.softmax(logits[0], -1).max(-1).values.tolist()])
        accept = _by_start(rows)
        if entry.temperature <= 0:
            _stop_where_unsure(accept, _by_start(sure))
        return Chances(entry.task, entry.prompt, entry.total - entry.prompt, accept)

    def _one(self, logits: torch.Tensor, text: Text, said: torch.Tensor) -> torch.Tensor:
        """Chance that each of these drafts [tokens, vocab] for `said` [tokens] is accepted."""
        places = self._places[said]
        if text.entry.temperature <= 0:
            return (logits.argmax(-1) == places).float()
        drafted = torch.log_softmax(logits / text.entry.temperature, -1)
        own = drafted.gather(-1, places.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        own = own.masked_fill(places < 0, -torch.inf)
        return torch.exp(own - self._wanted(text, said)).clamp(max=1.0)

    def _wanted(self, text: Text, said: torch.Tensor) -> torch.Tensor:
        """Log-probability of each output token but the first under the target, at the answer's temperature."""
        return target_log_probs(text, self._target)[1:][: len(said)]


class DraftJudge:
    """What a standalone draft model would draft: given that its drafts so far were right, it has read the text."""

    def __init__(self, draft: LoadedModel, target: LoadedModel, depth: int) -> None:
        self._draft = draft
        self._target = target
        self._depth = depth

    @torch.inference_mode()
    def chances(self, text: Text) -> Chances:
        """The same chance for a token, whichever number it has in a round."""
        entry = text.entry
        logits = self._draft.model(input_ids=text.tokens[None, :-1].to(self._draft.device), use_cache=False).logits[0]
        logits = logits[entry.prompt :].float().cpu()
        said = text.tokens[entry.prompt + 1 :]
        if entry.temperature <= 0:
            chance = (logits.argmax(-1) == said).float()
        else:
            own = torch.log_softmax(logits / entry.temperature, -1).gather(-1, said.unsqueeze(-1)).squeeze(-1)
            chance = torch.exp(own - target_log_probs(text, self._target)[1:]).clamp(max=1.0)
        rows = [[-1.0, *chance.tolist()]] * self._depth
        return Chances(entry.task, entry.prompt, entry.total - entry.prompt, _by_start(rows))


def ngram_chances(text: Text, depth: int, least: int) -> Chances:
    """What looking up the last tokens (`least` of them or more) in the text so far would draft."""
    entry = text.entry
    tokens = text.tokens.tolist()
    index = NgramIndex()
    count = entry.total - entry.prompt
    rows = [[-1.0] * count for _ in range(depth)]
    for at in range(1, count):
        known = tokens[: entry.prompt + at]
        index.extend(known)
        start = index.find(known[-MAX_N:], least)
        if start is None:
            continue
        right = True
        for number, token in enumerate(copy_from(known, start, depth)):
            place = entry.prompt + at + number
            right = right and place < entry.total and tokens[place] == token
            rows[number][at] = float(right)
    return Chances(entry.task, entry.prompt, count, rows)


def target_log_probs(text: Text, target: LoadedModel) -> torch.Tensor:
    """Log-probabilities [answer] of an answer's tokens under the target, at the answer's temperature."""
    entry = text.entry
    width = target.model.config.get_text_config().hidden_size
    model: Any = target.model
    norm, head = model.get_decoder().norm, model.get_output_embeddings()
    states = text.features[entry.prompt - 1 :, -width:].to(target.device, target.dtype)
    logits = head(norm(states)).float().cpu() / max(entry.temperature, 1e-6)
    said = text.tokens[entry.prompt :].unsqueeze(-1)
    chances: torch.Tensor = functional.log_softmax(logits, -1).gather(-1, said).squeeze(-1)
    return chances


def _stop_where_unsure(accept: list[list[float]], sure: list[list[float]]) -> None:
    """Take out the drafts that the engine would not make, the head giving them too small a chance."""
    for at in range(len(accept[0])):
        chance = 1.0
        for row, own in zip(accept, sure, strict=True):
            chance *= max(0.0, own[at])
            if chance < FLOOR:
                row[at] = -1.0


def _by_start(rows: Sequence[Sequence[float]]) -> list[list[float]]:
    """From chances by the token that is drafted to chances by the token with which the round begins."""
    count = len(rows[0])
    return [
        [row[at + number] if at > 0 and at + number < count else -1.0 for at in range(count)]
        for number, row in enumerate(rows)
    ]
