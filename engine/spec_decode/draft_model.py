"""A small model drafts: its own KV per request, kept in step with the target's tokens. Called by the core.

The draft catches up with whatever has been emitted since it last ran, so that acceptance is the same after a phase of
plain decoding. A long backlog is taken in by chunks, like a prompt, and nothing is proposed meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.attention import RowInput
from engine.kv_cache import KVPool, KVRow
from engine.model_runner import ModelRunner
from engine.sampler import Draft, SamplerState, argmax, draw, warp
from engine.sequence import Sequence as Seq


class DraftModelProposer:
    """Method `draft_model`."""

    def __init__(self, runner: ModelRunner, pool: KVPool, *, vocab_size: int, max_len: int, chunk: int) -> None:
        self._runner = runner
        self._pool = pool
        self._vocab_size = vocab_size
        """The target's width of logits: distributions are padded or cut to it."""
        self._max_len = max_len
        self._chunk = chunk
        self._rows: dict[str, KVRow] = {}

    def propose(self, wants: Sequence[tuple[Seq, SamplerState, int]]) -> list[Draft]:
        """Draft for all sequences together, one token of each per forward pass."""
        drafts = [Draft([]) for _ in wants]
        live = []
        backlog = []
        for at, (sequence, state, k) in enumerate(wants):
            row = self._row(sequence, k)
            if row is None:
                continue
            row.truncate(len(sequence.tokens) - 1)
            missing = sequence.tokens[row.length :]
            if len(missing) > self._chunk:
                backlog.append(RowInput(row, missing[: self._chunk], 0))
            elif k > 0:
                live.append((at, state, k, row, missing))
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
        row = self._row(sequence, sequence.request.speculation.k)
        if row is not None:
            row.zero()
            row.length = len(sequence.tokens) - 1

    def release(self, request_id: str) -> None:
        """Give the request's KV back."""
        row = self._rows.pop(request_id, None)
        if row is not None:
            self._pool.release(row)

    def _row(self, sequence: Seq, k: int) -> KVRow | None:
        """The request's KV, grown for k more tokens; None where the budget or the draft's window has no room."""
        need = len(sequence.tokens) + k
        row = self._rows.get(sequence.request_id)
        if need > self._max_len:
            return None
        if row is None:
            row = self._pool.allocate(need)
            if row is not None:
                self._rows[sequence.request_id] = row
            return row
        return row if self._pool.reserve(row, need) else None

    def _choose(
        self, logits: torch.Tensor, rows: Sequence[tuple[SamplerState, list[int], list[torch.Tensor]]]
    ) -> list[int]:
        """Pick each row's next draft token; sampled rows keep the distribution that it was drawn from."""
        width = min(self._vocab_size, logits.shape[-1])
        logits = logits[:, :width]
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
            kept.append(torch.nn.functional.pad(probs, (0, self._vocab_size - width)))
        return best
