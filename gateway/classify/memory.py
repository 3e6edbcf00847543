"""What was told of windows that come again: agents, retries and samples ask with the same last turn. For `serve`.

Remembered is what the text model says, by all that it reads; declarations and settling signals are looked at anew.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, NamedTuple

from gateway.classify.signals import Structure

MOST: Final = 1024
"""Windows remembered, the latest ones: with the longest of them, some 5 MiB."""


class Known(NamedTuple):
    """What a window says."""

    shape: Structure
    task: str
    confidence: float
    cues: list[str]


class Memory:
    """Bounded; in this process only, and gone with it."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._known: OrderedDict[Hashable, Known] = OrderedDict()

    def get(self, key: Hashable) -> Known | None:
        """Return what is known, None for what is new."""
        known = self._known.get(key)
        if known is not None:
            self._known.move_to_end(key)
        return known

    def keep(self, key: Hashable, known: Known) -> None:
        """Remember; forgets what was asked for the longest time ago."""
        self._known[key] = known
        if len(self._known) > self._most:
            self._known.popitem(last=False)
