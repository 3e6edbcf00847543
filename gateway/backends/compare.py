"""Compares the replicas of one arm: is one slower than the others, is its draft worth less? No I/O; called by `pool`.

Conversations are placed by a hash, so what two equal replicas get differs by chance alone, whatever the mix of tasks.
The first answer to each is paired with the oldest unpaired one of another replica under the same arm and load, a later
one only with one to the same conversation elsewhere. On each pair a bet at even odds is placed that this replica is the
worse one by far (an e-detector: Shin, Ramdas and Rinaldo, arXiv 2203.03532). Among equal replicas a bet gains nothing
on average, so that false alarms are at least `LIMIT` pairs apart in the mean; a replica that is worse in every pair is
named after 20, one that is so in nine of ten after about 28.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from gateway.backends.stats import completion_tokens
from gateway.types import Arm, Spec

STAKE = 0.6
"""Share of the capital that is bet on each pair."""
LIMIT = 10_000.0
SLOWER = 1.5
"""Times another's time per token, that make a replica the slower of a pair: load within one band may differ as well."""
LESS = 0.5
"""Share of another's yield, below which a draft is the worse of a pair."""
FEWEST_TOKENS = 8
"""Output of an answer that tells a pace."""
_WAITING = 8
_LONGEST_S = 60.0
"""How many unpaired answers wait for how long: a pair should be of one time."""
_CONVERSATIONS = 4096
SLOW, DRAFT = "for being slower than the others", "for a draft that yields less than the others'"


@dataclass(frozen=True, slots=True)
class Sent:
    """One request at a replica."""

    replica: int
    epoch: str
    conversation: int
    """A hash: no text is kept."""
    arm: Arm
    load: int
    """Band of sequences that ran there with it."""

    def answered(self, seconds: float, payload: Mapping[str, Any], spec: Spec | None, *, streamed: bool) -> Seen | None:
        """Return what its answer shows; None where that is too little."""
        tokens = completion_tokens(payload)
        if tokens is None or tokens < FEWEST_TOKENS:
            return None
        drafted = (spec.accepted if spec else 0) / tokens if self.arm.k else None
        if spec is not None and spec.decode_s:
            seconds, streamed = spec.decode_s, True  # by the server's own clock, alike for both forms
        return Seen(self, (self.arm, self.load, streamed), seconds / tokens, drafted)


@dataclass(frozen=True, slots=True)
class Seen:
    """One answer."""

    sent: Sent
    like: Hashable
    """Arm, load band and form: only answers alike are paired."""
    pace: float
    """Seconds per token."""
    drafted: float | None
    """Share of the tokens that a draft gave; None where the arm drafts nothing."""


class Comparison:
    """All pairs of one pool."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waiting: dict[Hashable, deque[tuple[float, Seen]]] = {}
        self._capital: dict[tuple[int, str], float] = {}
        self._known: OrderedDict[tuple[int, int], None] = OrderedDict()
        self._epochs: dict[int, str] = {}

    def see(self, answer: Seen) -> list[tuple[int, str]]:
        """Take an answer; return the replicas that it proves worse, with what is worse about them."""
        sent, now = answer.sent, self._clock()
        if self._epochs.setdefault(sent.replica, sent.epoch) != sent.epoch:
            self.forget(sent.replica)
            self._epochs[sent.replica] = sent.epoch
        like = answer.like if self._first(sent) else (answer.like, sent.conversation)
        waiting = self._waiting.setdefault(like, deque(maxlen=_WAITING))
        if len(self._waiting) > _CONVERSATIONS:
            del self._waiting[next(iter(self._waiting))]
        while waiting and waiting[0][0] < now - _LONGEST_S:
            waiting.popleft()
        for entry in waiting:
            if entry[1].sent.replica != sent.replica:
                waiting.remove(entry)
                return [*self._bets(answer, entry[1]), *self._bets(entry[1], answer)]
        waiting.append((now, answer))
        return []

    def forget(self, replica: int) -> None:
        """Begin anew with a replica: its process did, or it was left out for what was found."""
        for place in [place for place in self._capital if place[0] == replica]:
            del self._capital[place]
        for waiting in self._waiting.values():
            for entry in [entry for entry in waiting if entry[1].sent.replica == replica]:
                waiting.remove(entry)

    def _first(self, sent: Sent) -> bool:
        key = sent.replica, sent.conversation
        known = key in self._known
        self._known[key] = None
        self._known.move_to_end(key)
        if len(self._known) > _CONVERSATIONS:
            self._known.popitem(last=False)
        return not known

    def _bets(self, own: Seen, other: Seen) -> list[tuple[int, str]]:
        worse = {SLOW: own.pace > SLOWER * other.pace}
        if own.drafted is not None and other.drafted is not None:  # of one arm: both or none
            worse[DRAFT] = own.drafted < LESS * other.drafted
        replica = own.sent.replica
        return [(replica, what) for what, is_worse in worse.items() if self._bet(replica, what, worse=is_worse)]

    def _bet(self, replica: int, on: str, *, worse: bool) -> bool:
        """Return whether the capital has reached the limit; kept from 1 up to there, so that a late change counts."""
        capital = max(1.0, self._capital.get((replica, on), 1.0)) * (1 + STAKE if worse else 1 - STAKE)
        self._capital[replica, on] = min(capital, LIMIT)
        return capital >= LIMIT
