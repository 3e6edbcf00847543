"""A small model drafts: its own KV per request, kept in step with the target's tokens. Called by the core.

The draft catches up with whatever has been emitted since it last ran, so that acceptance is the same after a phase of
plain decoding. A long backlog is taken in by chunks, like a prompt, and nothing is proposed meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from engine.attention import RowInput
from engine.kv_cache import KVPool, KVRow
from engine.model_runner import ModelRunner
from engine.sampler import Draft, SamplerState, argmax, draw, warp
from engine.sequence import Sequence as Seq


@dataclass(slots=True)
class _Read:
    """What the draft model has read of one request."""

    kv: KVRow
    base: int = 0
    """Tokens of the request at the last proposal."""
    drafts: list[int] = field(default_factory=list)
    """Tokens proposed there: read as if they came next, whether or not they did."""

    def roll_back(self, tokens: Sequence[int]) -> list[int]:
        """Forget drafts that did not come to pass, and return the tokens that are still to be read."""
        valid = self.base
        for draft in self.drafts:
            if valid >= len(tokens) or tokens[valid] != draft:
                break
            valid += 1
        self.kv.truncate(min(valid, len(tokens) - 1))
        self.base, self.drafts = len(tokens), []
        return list(tokens[self.kv.length :])


class DraftModelProposer:
    """Method `draft_model`."""

    def __init__(self, runner: ModelRunner, pool: KVPool, *, vocab_size: int, max_len: int, chunk: int) -> None:
        self._runner = runner
        self._pool = pool
        self._vocab_size = vocab_size
        """The target's width of logits: distributions are padded or cut to it."""
        self._max_len = max_len
        self._chunk = chunk
        self._rows: dict[str, _Read] = {}

    def propose(self, wants: Sequence[tuple[Seq, SamplerState, int]]) -> list[Draft]:
        """Draft for all sequences together, one token of each per forward pass."""
        drafts = [Draft([]) for _ in wants]
        live = []
        backlog = []
        for at, (sequence, state, k) in enumerate(wants):
            read = self._row(sequence, k)
            if read is None:
                continue
            missing = read.roll_back(sequence.tokens)
            if max(missing) >= self._runner.vocab_size:
                continue  # padding of the target's vocabulary, which the draft has no embedding for
            if len(missing) > self._chunk:
                backlog.append(RowInput(read.kv, missing[: self._chunk], 0))
            elif k > 0:
                read.drafts = drafts[at].tokens
                live.append((at, state, k, read.kv, missing))
        if backlog:
            self._runner.forward(backlog)
        probs: list[list[torch.Tensor]] = [[] for _ in wants]
        while live:
            logits = self._runner.forward([RowInput(row, tokens, 1) for _, _, _, row, tokens in live])
            chosen = self._choose(logits, [(state, drafts[at].tokens, probs[at]) for at, state, _, _, _ in live])
            following = []
            for (at, state, k, row, _), token in zip(live, chosen, strict=True):
                drafts[at].tokens.append(token)
                if len(drafts[at].tokens) < k:
                    following.append((at, state, k, row, [token]))
            live = following
        for draft, rows in zip(drafts, probs, strict=True):
            if rows:
                draft.probs = torch.stack(rows)
        return drafts

    def take_for_read(self, sequence: Seq) -> None:
        """Count all tokens but the last as read, their keys and values being zero."""
        read = self._row(sequence, sequence.request.speculation.k)
        if read is not None:
            read.kv.zero()
            read.kv.length = read.base = len(sequence.tokens) - 1

    def release(self, request_id: str) -> None:
        """Give the request's KV back."""
        read = self._rows.pop(request_id, None)
        if read is not None:
            self._pool.release(read.kv)

    def _row(self, sequence: Seq, k: int) -> _Read | None:
        """The request's KV, grown for k more tokens; None where the budget or the draft's window has no room."""
        need = len(sequence.tokens) + k
        read = self._rows.get(sequence.request_id)
        if need > self._max_len:
            return None
        if read is None:
            row = self._pool.allocate(need)
            if row is None:
                return None
            read = self._rows[sequence.request_id] = _Read(row)
            return read
        return read if self._pool.reserve(read.kv, need) else None

    def _choose(
        self, logits: torch.Tensor, rows: Sequence[tuple[SamplerState, list[int], list[torch.Tensor]]]
    ) -> list[int]:
        """Pick each row's next draft token; sampled rows keep the distribution that it was drawn from."""
        logits = self._as_wide(logits)
        best = argmax(logits)
        for at, (state, before, kept) in enumerate(rows):
            if state.plain:
                continue
            warped = warp(logits[at], state, before)
            if state.params.temperature <= 0:
                best[at] = int(warped.argmax())
                continue
            probs = torch.softmax(warped, dim=-1)
            best[at] = draw(probs, state.draft)
            kept.append(probs)
        return best

    def _as_wide(self, logits: torch.Tensor) -> torch.Tensor:
        """Cut or pad logits to the target's vocabulary; what the draft does not know it never proposes."""
        missing = self._vocab_size - logits.shape[-1]
        if missing > 0:
            return torch.nn.functional.pad(logits, (0, missing), value=float("-inf"))
        return logits[:, : self._vocab_size]
