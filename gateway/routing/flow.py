"""Moves traffic between backends by degrees, so that gateways that learn the same do not all run at once. Pure.

Every gateway reads the same statistics and load up to a second old: where a backend becomes the better one for a kind
of request, all see it within that second. A share that follows the preference with a lag leaves the backend's load time
to answer; a preference that reverses as soon as the load has moved settles in between instead of swinging.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

FlowKind = tuple[str, str, str]
"""(task, temperature band, context band)."""
_LEAST = 0.002
"""A share below this has moved altogether."""


@dataclass(slots=True)
class Flow:
    """Which share of each kind of request goes to which backend. Carried on from snapshot to snapshot."""

    shares: dict[FlowKind, dict[str, float]] = field(default_factory=dict)
    preferred: dict[FlowKind, str] = field(default_factory=dict)
    """What decisions have preferred since the last step."""
    at: float = 0.0

    def settled(self, kind: FlowKind, preferred: str) -> bool:
        """Note a preference; return whether all such requests go where they prefer to, so that none needs a draw."""
        shares = self.shares.get(kind)
        if shares is None or shares.get(preferred, 0.0) < 1.0 - _LEAST:
            return False
        self.preferred[kind] = preferred
        return True

    def place(self, kind: FlowKind, preferred: str, among: Iterable[str], draw: float) -> str:
        """Return the backend for one request that would prefer `preferred`, and note the preference.

        `draw`, uniform in [0, 1), is that of the conversation where there is one: a shift moves few of them, and once.
        """
        self.preferred[kind] = preferred
        shares = self.shares.get(kind)
        if shares is None:
            self.shares[kind] = {preferred: 1.0}
            return preferred
        if shares.get(preferred, 0.0) >= 1.0 - _LEAST:
            return preferred
        open_ = [(name, shares[name]) for name in sorted(among) if name in shares]
        mark = draw * sum(share for _, share in open_)
        for name, share in open_:
            mark -= share
            if mark < 0:
                return name
        return preferred

    def advance(self, now: float, lag_s: float) -> None:
        """Move the shares towards what was preferred of late; after `lag_s` seconds, 63 % of the way."""
        elapsed, self.at = max(0.0, now - self.at), now
        noted, self.preferred = self.preferred, {}
        keep = math.exp(-elapsed / lag_s) if lag_s > 0 else 0.0
        for kind, preferred in noted.items():
            before = self.shares.get(kind, {})
            shares = {name: keep * share for name, share in before.items() if keep * share > _LEAST}
            shares[preferred] = 0.0
            shares[preferred] = 1.0 - sum(shares.values())
            self.shares[kind] = shares
