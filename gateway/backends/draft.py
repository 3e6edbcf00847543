"""Does a server still draft, and does its draft still hold? Answers stay right when a draft dies. No I/O; for adapters.

`speculates` is what the server's documents say of itself; the rest is what its answers show: after `ANSWERS` answers
and `ROUNDS` rounds in a row in which no token was accepted, the draft is dead. One that guesses right in 5 % of rounds
would look so once in 28,000 times. Rounds are what counts: after the first refused token the others of a round are too.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.types import Spec

ANSWERS = 10
ROUNDS = 200


@dataclass(slots=True)
class DraftWatch:
    """What is known of one process's draft."""

    speculates: bool | None = None
    """Whether the process drafts at all; None where it does not say."""
    answers: int = 0
    rounds: int = 0
    """Both with drafts of which nothing was accepted since the last one that was."""

    def note(self, spec: Spec) -> bool:
        """Take an answer's acceptance; return whether the draft has just proved dead."""
        if spec.accepted:
            self.answers = self.rounds = 0
        if spec.accepted or not spec.drafted:
            return False
        before = self.dead
        self.answers += 1
        self.rounds += max(1, spec.rounds)  # where a server tells none, its draft took at least one
        return self.dead and not before

    @property
    def dead(self) -> bool:
        """Whether nothing that it proposes is accepted any more."""
        return self.answers >= ANSWERS and self.rounds >= ROUNDS

    @property
    def unheard(self) -> bool:
        """Whether neither the server nor an answer has said anything that `fault` could tell: so with most, mostly."""
        return self.speculates is None and not self.answers

    def fault(self, *, wanted: bool) -> str:
        """Return what is wrong with it, "" if nothing; `wanted`: whether the policy names it for speculation."""
        if wanted and self.speculates is False:
            return "does not speculate, though the policy names it for that: taken as plain"
        if not wanted and self.speculates:
            return "speculates, though the policy names it as plain"
        if self.dead:
            return f"its draft is dead: no token was accepted in {self.rounds} rounds of {self.answers} answers"
        return ""
