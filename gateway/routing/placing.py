"""Which of several backends a request goes to, its wait for the first token included. Pure; called by `choose`.

Arms of one backend share its queue and its memory, so that between them time per token decides alone. Between backends
an arm is charged what this request is expected to take from end to end: prefill and queue besides its tokens. A draft
that takes memory from the cache shows there: fewer sequences fit, and the rest waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.bands import context_band, temperature_band
from gateway.routing.book import ALL
from gateway.routing.options import Ask, Option, hash_draw
from gateway.routing.weigh import Weighed
from gateway.types import BackendState

KV_FULL = 0.95
"""Share of the cache in use from which a backend counts as if one more sequence waited: it will not admit the next."""
_USUAL_OUTPUT = 256.0
Quote = tuple[str, Option, float, float]
"""A backend, its best arm, seconds to the first token without a queue, seconds of a usual request in all."""


@dataclass(slots=True)
class Bid:
    """What one backend's best arm would take for this request, in seconds."""

    option: Option
    decode_s: float
    start_s: float
    """Time to the first token where nothing waits."""
    wait_s: float
    """Expected time in the queue."""

    @property
    def total_s(self) -> float:
        """Expected end-to-end time."""
        return self.decode_s + self.start_s + self.wait_s


def wait_s(state: BackendState, request_s: float) -> float:
    """Return the expected wait at a backend that decodes requests of `request_s` seconds each.

    Sequences there end at the rate running / request_s (Little's law), and those waiting go first. Load may be a second
    old: a backend without a queue is taken at its word.
    """
    queue = state.waiting + (1 if (state.kv_used or 0.0) >= KV_FULL else 0)
    return queue * request_s / max(1, state.running) if queue else 0.0


def placed(ask: Ask, weighed: Weighed) -> tuple[Option, str]:
    """Return the option to take where several backends lead, and why it is not the one that is fastest per token."""
    best = weighed.best
    bids = _bids(ask, weighed)
    if len(bids) < 2 or best.arm.backend not in bids:
        return best, ""
    tuning, flow = ask.snapshot.tuning, ask.snapshot.flow
    wanted = _with_start(bids, best.arm.backend, tuning.queue_margin)
    kind = (ask.task, temperature_band(ask.request.temperature), context_band(ask.prompt_tokens))
    taken = wanted if flow.settled(kind, wanted) else flow.place(kind, wanted, bids, _share(ask))
    why = "" if taken == best.arm.backend else "shifting by degrees"
    if ask.home in bids and ask.rule.sticky and taken != ask.home and _stays(bids[ask.home], bids[taken]):
        taken, why = ask.home, "stays with its prefix cache"
    queued = _leaves(bids, taken, ask, tuning.queue_margin, tuning.queue_ramp_s)
    if queued is not None:
        why = f"{taken} would take {bids[taken].wait_s:.1f} s in its queue"
        taken = queued
    return bids[taken].option, (why if taken != best.arm.backend else "")


def _bids(ask: Ask, weighed: Weighed) -> dict[str, Bid]:
    tokens, quotes = weighed.once("quotes", lambda: _quotes(ask, weighed))
    if ask.request.max_tokens:
        tokens = min(tokens, float(ask.request.max_tokens))
    bids = {}
    for name, option, start, request_s in quotes:
        kept = name == ask.home and ask.rule.sticky
        wait = wait_s(ask.backends[name], request_s)
        bids[name] = Bid(option, tokens * (option.seconds or 0.0), 0.0 if kept else start, wait)
    return bids


def _quotes(ask: Ask, weighed: Weighed) -> tuple[float, list[Quote]]:
    """Return the usual output of such a request, and what each backend's best arm is known to take."""
    book = ask.snapshot.book
    tokens = book.output_tokens(ask.task) or _USUAL_OUTPUT
    usual = book.output_tokens(ALL) or tokens
    quotes = []
    for name, option in weighed.leaders.items():
        if option.seconds is not None:
            start = book.start_s(option.arm, context_band(ask.prompt_tokens)) or 0.0
            quotes.append((name, option, start, usual * option.seconds + start))
    return tokens, quotes


def _with_start(bids: Mapping[str, Bid], fastest: str, margin: float) -> str:
    """Return the backend that a request prefers: the fastest per token unless another's start more than makes up."""
    mine = bids[fastest]
    other = min(bids, key=lambda name: bids[name].decode_s + bids[name].start_s)
    before = mine.decode_s + mine.start_s
    better = before - (bids[other].decode_s + bids[other].start_s)
    return other if mine.start_s > bids[other].start_s and better > margin * before else fastest


def _stays(home: Bid, other: Bid) -> bool:
    """Return whether the conversation's prefix cache is worth more than what another backend would save."""
    return home.decode_s + home.wait_s <= other.decode_s + other.start_s + other.wait_s


def _leaves(bids: Mapping[str, Bid], taken: str, ask: Ask, margin: float, ramp_s: float) -> str | None:
    """Return the backend that this request flees to from a queue: the worse the queue, the more requests do."""
    mine = bids[taken]
    if mine.wait_s <= 0:
        return None
    other = min(bids, key=lambda name: bids[name].total_s)
    better = mine.total_s - bids[other].total_s
    if other == taken or better <= margin * mine.total_s or bids[other].wait_s >= mine.wait_s:
        return None
    return other if hash_draw(repr(ask.draw), b"queue") < better / ramp_s else None


def _share(ask: Ask) -> float:
    """Return a number in [0, 1) that is the same for a conversation."""
    return hash_draw(ask.conversation or repr(ask.draw), b"share")
