"""A breaker in front of a store: after a failure, calls fail at once until a pause has passed. No I/O.

Used by `store.py` (the next call after the pause is the trial) and `limits.py` (a background ping is the trial, so that
no request ever waits for a frozen server).
"""

from __future__ import annotations

import time
from collections.abc import Callable


class Breaker:
    """Closed while the store answers; open for a pause that doubles with each failed trial, at most `longest_s`."""

    def __init__(
        self, *, first_s: float = 0.5, longest_s: float = 5.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._clock = clock
        self._pause_s = 0.0
        self._until = 0.0
        self.reason = ""
        """Why it is open; empty while closed."""

    @property
    def closed(self) -> bool:
        """Whether the last call succeeded (or none was made)."""
        return not self.reason

    @property
    def may_try(self) -> bool:
        """Whether a call may go out now: closed, or open and the pause has passed."""
        return self.closed or self._clock() >= self._until

    def success(self) -> None:
        """Close."""
        self.reason = ""
        self._pause_s = 0.0

    def failure(self, reason: str) -> None:
        """Open, for twice the last pause."""
        self.reason = reason or "failed"
        self._pause_s = min(self._longest_s, max(self._first_s, self._pause_s * 2))
        self._until = self._clock() + self._pause_s
