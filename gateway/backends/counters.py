"""Acceptance of one response where a server tells only totals: its share of what they gained. Pure; for adapters.

An estimate, and marked as one: between two looks at the counters every response of that time is taken for average.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.backends.stats import completion_tokens
from gateway.types import Spec

DRAFTED = "llamacpp:spec_decode_num_draft_tokens_total"
ROUNDS = "llamacpp:spec_decode_num_drafts_total"
"""llama.cpp's totals; per response it counts tokens only."""
_KEPT = 0.5
"""Weight of the past against a look's own counts: some looks see only a handful of tokens."""


@dataclass(frozen=True, slots=True)
class CounterNames:
    """How a server calls its totals."""

    rounds: str
    drafted: str
    accepted: str
    tokens: str


VLLM = CounterNames(
    "vllm:spec_decode_num_drafts_total",
    "vllm:spec_decode_num_draft_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_total",
    "vllm:generation_tokens_total",
)


class CounterShare:
    """The rounds, draft and accepted tokens per output token, from the gains between looks."""

    def __init__(self, names: CounterNames) -> None:
        self._names = names
        self._last: tuple[float, float, float, float] | None = None
        self._gains = (0.0, 0.0, 0.0, 0.0)
        self._owed = 0.0
        """Accepted tokens not given to a response yet: small shares rounded to none would look like a dead draft."""

    def look(self, samples: Mapping[str, float]) -> None:
        """Take a page's samples. A counter that fell means a new process: what was known is forgotten."""
        names = self._names
        if names.tokens not in samples or names.rounds not in samples:
            self._last = None
            return
        now = (
            samples[names.rounds],
            samples.get(names.drafted, 0.0),
            samples.get(names.accepted, 0.0),
            samples[names.tokens],
        )
        last, self._last = self._last, now
        if last is None:
            return
        if any(value < before for value, before in zip(now, last, strict=True)):
            self._gains, self._owed = (0.0, 0.0, 0.0, 0.0), 0.0
        elif now[3] > last[3]:
            rounds, drafted, accepted, tokens = (
                _KEPT * gain + value - before for gain, value, before in zip(self._gains, now, last, strict=True)
            )
            self._gains = (rounds, drafted, accepted, tokens)

    def spec(self, payload: Mapping[str, Any]) -> Spec | None:
        """Return this response's share, by its output tokens; None where nothing is known.

        One token is none of a round: the prompt gives it.
        """
        tokens = completion_tokens(payload)
        rounds, drafted, accepted, seen = self._gains
        if tokens is None or tokens < 2 or rounds <= 0 or seen <= 0:
            return None
        share = tokens / seen
        self._owed += accepted * share
        proposed = round(drafted * share)
        given = min(int(self._owed), proposed)
        self._owed -= given
        return Spec(
            rounds=round(rounds * share),
            drafted=proposed,
            accepted=given,
            histogram=[],
            estimated=True,
        )


class RoundShare:
    """Draft tokens per round of a server whose responses count tokens only, from the gains between looks."""

    def __init__(self, drafted: str = DRAFTED, rounds: str = ROUNDS) -> None:
        self._names = drafted, rounds
        self._last: tuple[float, float] | None = None
        self._gains = (0.0, 0.0)

    def look(self, samples: Mapping[str, float]) -> None:
        """Take a page's samples; totals that fell are those of a new process."""
        now = samples.get(self._names[0], 0.0), samples.get(self._names[1], 0.0)
        last, self._last = self._last, now
        if last is None or now[0] < last[0] or now[1] < last[1]:
            self._gains = now
        elif now[1] > last[1]:
            drafted, rounds = (_KEPT * gain + n - p for gain, n, p in zip(self._gains, now, last, strict=True))
            self._gains = drafted, rounds

    def rounds(self, spec: Spec, tokens: int, longest: int) -> Spec:
        """Fill in a response's rounds and undrafted steps: `tokens` of output, drafts of at most `longest`.

        Accepted tokens bound the rounds: no round accepts more than its draft, and none is without a token of its own.
        """
        drafted, rounds = self._gains
        mean = drafted / rounds if rounds else float(max(1, longest))
        steps = max(0, tokens - spec.accepted)
        spec.rounds = max(1, min(round(spec.drafted / mean), steps)) if spec.drafted else 0
        spec.undrafted = max(0, steps - spec.rounds)
        return spec
