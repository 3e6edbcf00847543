"""Does a server still draft, and does its draft still hold? Answers stay right when a draft dies. No I/O; for adapters.

`speculates` is what the server's documents say of itself, `accepts` what its answers show: after `ANSWERS` answers and
`TOKENS` draft tokens in a row of which none was accepted, the draft is dead. One that guesses right in 5 % of cases
would look so once in 28,000 times.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.types import Spec

ANSWERS = 10
TOKENS = 200


@dataclass(slots=True)
class DraftWatch:
    """What is known of one process's draft."""

    speculates: bool | None = None
    """Whether the process drafts at all; None where it does not say."""
    answers: int = 0
    tokens: int = 0
    """With drafts of which nothing was accepted since the last one that was."""

    def note(self, spec: Spec) -> bool:
        """Take an answer's acceptance; return whether the draft has just proved dead."""
        if spec.accepted:
            self.answers = self.tokens = 0
        if spec.accepted or not spec.drafted:
            return False
        before = self.dead
        self.answers, self.tokens = self.answers + 1, self.tokens + spec.drafted
        return self.dead and not before

    @property
    def dead(self) -> bool:
        """Whether nothing that it proposes is accepted any more."""
        return self.answers >= ANSWERS and self.tokens >= TOKENS

    def fault(self, *, wanted: bool) -> str:
        """Return what is wrong with it, "" if nothing; `wanted`: whether the policy names it for speculation."""
        if wanted and self.speculates is False:
            return "does not speculate, though the policy names it for that: taken as plain"
        if not wanted and self.speculates:
            return "speculates, though the policy names it as plain"
        if self.dead:
            return f"its draft is dead: none of {self.tokens} tokens was accepted in {self.answers} answers"
        return ""
