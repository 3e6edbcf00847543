"""Which backend answered a conversation last: its prompt's prefix is in that one's cache. In memory; for `serve`.

Each gateway knows the conversations that came by it; where one does not, nothing is lost but a prefill.
"""

from __future__ import annotations

from collections import OrderedDict

_KEPT = 20_000
"""Conversations remembered, the latest ones: caches forget sooner."""


class Homes:
    """Conversation → backend, bounded."""

    def __init__(self, kept: int = _KEPT) -> None:
        self._kept = kept
        self._homes: OrderedDict[str, str] = OrderedDict()

    def of(self, conversation: str) -> str:
        """Return the backend that answered last, "" where none is known."""
        return self._homes.get(conversation, "")

    def note(self, conversation: str, backend: str) -> None:
        """Remember who answered."""
        if conversation:
            self._homes[conversation] = backend
            self._homes.move_to_end(conversation)
            if len(self._homes) > self._kept:
                self._homes.popitem(last=False)
