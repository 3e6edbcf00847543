"""What requests tell of each draft length, as plain numbers: made once of counters, read once per load. Pure."""

from __future__ import annotations

from typing import NamedTuple


class Counts(NamedTuple):
    """What requests did, or would have done, at one draft length."""

    place: int
    """Where its rounds lie in `Told.gram`; its undrafted steps come next."""
    rounds: float
    undrafted: float
    drafted: float
    accepted: float
    zero: float


class Told(NamedTuple):
    """What some requests tell of each draft length, as plain numbers: they are read once per load."""

    requests: float
    tokens: float
    squares: float
    """Σ tokens² over requests."""
    at: dict[int, Counts]
    gram: list[list[float]]
    """Σ over requests of the product of two features (`Layout.features`)."""

    @property
    def effective(self) -> float:
        """How many requests of equal length would say as much (Kish): a mean over tokens hangs on the longest."""
        return self.tokens * self.tokens / self.squares if self.squares > 0 else 0.0

    def tokens_at(self, k: int) -> float:
        """Return the tokens of the requests that tell of `k`."""
        counts = self.at[k]
        return counts.rounds + counts.undrafted + counts.accepted
