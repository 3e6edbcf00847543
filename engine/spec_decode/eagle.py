"""The feature-fed draft (EAGLE): one layer that reads the target's own hidden states. Called by the core.

The core shows `observe` the hidden states of each of the target's passes; `propose` reads those of the tokens that
stay, then drafts, its own output standing for the hidden states that are not there yet. Where states are missing (a
prompt's reused prefix) the draft's context begins later: it only guesses a little worse.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.attention import RowInput
from engine.kv_cache import KVPool, KVRow
from engine.sampler import Draft, SamplerState, argmax
from engine.sequence import Sequence as Seq
from engine.spec_decode.choosing import choose
from engine.spec_decode.eagle_layer import EagleLayer

METHODS = ("eagle", "hybrid")
"""Methods whose requests it follows."""
FLOOR = 0.15
"""A greedy draft goes on while the head gives all of it together this chance: about what one more draft token costs."""


@dataclass(slots=True)
class _Read:
    """What the head has seen of one request. Position t stands for the state of token t and the token after it."""

    kv: KVRow
    origin: int
    """Position of the first entry of the KV."""
    start: int
    """Position of the first kept state."""
    states: torch.Tensor
    """[kept, width]; the first is that of the last position read, so that it can be read again."""
    timed: bool = False
    """Whether there is no text and only time is wanted: drafts are as long as asked for."""

    def take(self, position: int, states: torch.Tensor) -> None:
        """Add the states from `position` on, in place of what was drafted there before."""
        known = position - self.start
        if 0 <= known <= len(self.states):
            self.states = torch.cat((self.states[:known], states))
        else:
            self.kv.truncate(0)
            self.origin = self.start = position
            self.states = states

    def rest(self, length: int, limit: int) -> int:
        """Roll the KV back to what is true of a text of `length` tokens; return how many states are to be read."""
        self.states = self.states[: max(0, length - 1 - self.start)]
        self.kv.truncate(max(0, self.start - self.origin))
        return min(len(self.states), limit)


@dataclass(slots=True)
class _Live:
    """A row that is being drafted for."""

    at: int
    state: SamplerState
    k: int
    read: _Read
    chance: float = 1.0
    """What the head thinks of its draft so far."""

    def wants(self, chance: float) -> bool:
        """Whether a further token, of this chance, is worth drafting. Sampled drafts must not depend on it."""
        self.chance *= chance
        return self.chance >= FLOOR or not self.state.plain or self.read.timed


class EagleProposer:
    """Method `eagle`."""

    def __init__(self, layer: EagleLayer, pool: KVPool, *, vocab_size: int, chunk: int) -> None:
        self._layer = layer
        self._pool = pool
        self._vocab_size = vocab_size
        self._chunk = chunk
        self._rows: dict[str, _Read] = {}

    @property
    def taps(self) -> tuple[int, ...]:
        """Layers of the target whose outputs it reads."""
        return self._layer.taps

    def observe(self, parts: Sequence[tuple[Seq, torch.Tensor]]) -> None:
        """Keep the hidden states of the requests that draft with this head."""
        wanted = [part for part in parts if part[0].request.speculation.method in METHODS]
        wanted = [part for part in wanted if part[0].request.speculation.k]
        if not wanted:
            return
        fused = self._layer.fuse(torch.cat([features for _, features in wanted]))
        for (sequence, _), states in zip(wanted, torch.split(fused, [len(part) for _, part in wanted]), strict=True):
            position = sequence.row.length - len(states)
            read = self._rows.get(sequence.request_id)
            if read is None:
                row = self._pool.allocate(1)
                if row is not None:
                    self._rows[sequence.request_id] = _Read(row, position, position, states)
            else:
                read.take(position, states)

    def propose(self, wants: Sequence[tuple[Seq, SamplerState, int]]) -> list[Draft]:
        """Draft for all sequences together, one token of each per pass."""
        drafts = [Draft([]) for _ in wants]
        kept: list[list[torch.Tensor]] = [[] for _ in wants]
        live, inputs, states = self._catch_up(wants)
        if not inputs:
            return drafts
        logits, state = self._layer.forward(inputs, states)
        while live:
            chosen = self._choose(logits, [(row.state, drafts[row.at].tokens, kept[row.at]) for row in live])
            chances = torch.exp(logits.max(dim=-1).values - logits.float().logsumexp(dim=-1)).tolist()
            following = []
            for place, (row, token) in enumerate(zip(live, chosen, strict=True)):
                if token is None or not row.wants(chances[place]):
                    continue
                drafts[row.at].tokens.append(token)
                if len(drafts[row.at].tokens) < row.k:
                    following.append((place, row))
            live = [row for _, row in following]
            if live:
                state = state[[place for place, _ in following]] if len(live) < len(state) else state
                inputs = [RowInput(row.read.kv, [drafts[row.at].tokens[-1]], 1) for row in live]
                logits, state = self._layer.forward(inputs, state)
        for draft, rows in zip(drafts, kept, strict=True):
            if rows:
                draft.probs = torch.stack(rows)
        return drafts

    def take_for_read(self, sequence: Seq) -> None:
        """Count all tokens but the last as read, everything being zero."""
        length = len(sequence.tokens)
        row = self._pool.allocate(length + sequence.request.speculation.k)
        if row is not None:
            row.zero()
            row.length = length - 2
            state = self._layer.no_state()
            self._rows[sequence.request_id] = _Read(row, 0, length - 2, state, timed=True)

    def release(self, request_id: str) -> None:
        """Give the request's KV back."""
        read = self._rows.pop(request_id, None)
        if read is not None:
            self._pool.release(read.kv)

    def _catch_up(
        self, wants: Sequence[tuple[Seq, SamplerState, int]]
    ) -> tuple[list[_Live], list[RowInput], torch.Tensor]:
        """What the first pass reads: the states since the last proposal; long backlogs are read without drafting."""
        drafting: list[tuple[_Live, RowInput, torch.Tensor]] = []
        reading: list[tuple[RowInput, torch.Tensor]] = []
        for at, (sequence, state, k) in enumerate(wants):
            read = self._rows.get(sequence.request_id)
            length = len(sequence.tokens)
            if read is None or not self._pool.reserve(read.kv, length - read.origin + k):
                continue
            count = read.rest(length, self._chunk)
            if count == 0:
                continue
            begin = read.start
            states = read.states[:count]
            tokens = sequence.tokens[begin + 1 : begin + 1 + count]
            if count < len(read.states):
                read.states, read.start = read.states[count:], begin + count
                reading.append((RowInput(read.kv, tokens, 0), states))
                continue
            read.states, read.start = read.states[count - 1 :], begin + count - 1
            drafting.append((_Live(at, state, k, read), RowInput(read.kv, tokens, 1), states))
        inputs = [row for _, row, _ in drafting] + [row for row, _ in reading]
        kept = [part for _, _, part in drafting] + [part for _, part in reading]
        return [row for row, _, _ in drafting], inputs, torch.cat(kept) if kept else torch.empty(0)

    def _choose(
        self, logits: torch.Tensor, rows: Sequence[tuple[SamplerState, list[int], list[torch.Tensor]]]
    ) -> list[int | None]:
        """Pick each row's next token, an id of the target's vocabulary."""
        if all(state.plain for state, _, _ in rows):
            return [int(token) for token in self._layer.vocab[argmax(logits)].tolist()]
        wide = torch.full((len(rows), self._vocab_size), -torch.inf, dtype=logits.dtype, device=logits.device)
        wide[:, self._layer.vocab] = logits
        return choose(wide, rows)
