"""Asks the engine's drafters what they would have proposed at every position of a finished answer.

Called by `cli.recording.run`. At each output position the drafter sees the real text up to it, whatever it proposed
before: a simulated round of any length can begin anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows
from dataclasses import dataclass, field, replace

from cli.recording.generate import Answer
from engine.config import EngineConfig
from engine.control import Controller
from engine.grammar import GrammarCompiler
from engine.messages import Speculation
from engine.models import LoadedModel
from engine.sampler import SamplerState
from engine.sequence import Sequence
from engine.spec_decode.proposals import Proposals


@dataclass(slots=True)
class Acceptance:
    """One method's lists for one answer, an entry for each output position."""

    emitted: list[int] = field(default_factory=list)
    """Tokens that a round would emit there: accepted ones and one more, never beyond the answer's end."""
    drafted: list[int] = field(default_factory=list)
    """Tokens that the drafter proposed there."""


@dataclass(slots=True)
class _Row:
    answer: Answer
    sequence: Sequence
    state: SamplerState
    found: Acceptance = field(default_factory=Acceptance)


class Replayer:
    """Drafters over finished answers; `batch` is how many are replayed together at most."""

    def __init__(self, target: LoadedModel, draft: LoadedModel | None, *, max_draft: int, batch: int) -> None:
        longest = target.max_len + max_draft
        config = EngineConfig(
            kv_tokens=2 * batch * (longest + 64),  # rows grow by half: a draft is never left out for want of room
            prefill_chunk=longest,  # nor because it is still reading the prompt
            max_k=max_draft,
            profile=False,
        )
        self._max_draft = max_draft
        self._proposals = Proposals(config, target, draft)
        self._grammars = GrammarCompiler(target, threads=config.num_threads)

    @property
    def methods(self) -> list[str]:
        """Methods on offer: `draft_model` with a draft only."""
        return self._proposals.methods

    def replay(self, method: str, answers: Rows[Answer]) -> list[Acceptance]:
        """Return one method's lists for each answer, in order."""
        rows = [self._row(method, answer) for answer in answers]
        for at in range(max((len(row.answer.tokens) for row in rows), default=0)):
            self._position(at, [row for row in rows if at < len(row.answer.tokens)])
        for row in rows:
            self._proposals.release(row.sequence)
        return [row.found for row in rows]

    def _row(self, method: str, answer: Answer) -> _Row:
        request = answer.request
        speculation = Speculation(method, self._max_draft)
        schema = request.sampling.grammar
        grammar = None if schema is None else self._grammars.start(schema)
        state = SamplerState(request.sampling, request.prompt_ids, 0, grammar)
        tokens = list(request.prompt_ids)
        asked = replace(request, speculation=speculation)
        return _Row(answer, Sequence(asked, Controller(self._max_draft, None), 0.0, tokens, len(tokens)), state)

    def _position(self, at: int, rows: list[_Row]) -> None:
        """Draft from position `at` of every row, compare with the answer, and move on by one token."""
        # As in the core, no draft is longer than what max_tokens leaves beside the target's own token.
        wants = [(row.sequence, row.state, min(self._max_draft, row.sequence.remaining - 1)) for row in rows]
        for row, draft in zip(rows, self._proposals.propose(wants), strict=True):
            answer = row.answer.tokens
            accepted = 0
            for token in draft.tokens:
                if at + accepted >= len(answer) or answer[at + accepted] != token:
                    break
                accepted += 1
            row.found.emitted.append(min(accepted + 1, len(answer) - at))
            row.found.drafted.append(len(draft.tokens))
            row.sequence.tokens.append(answer[at])
            row.state.count(answer[at : at + 1])
