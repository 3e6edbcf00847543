"""Suffix matching: the longest earlier occurrences of the present ending vote for what comes next. Method `suffix`.

As in SuffixDecoding (arXiv 2411.04975), the draft grows with the length of the match and ends where the votes become
unsure. Looks at the request's own text and, where the operator allows it, at past outputs of the same cache key.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from engine.sampler import Draft, SamplerState
from engine.sequence import Sequence as Seq

ANCHOR = 2
"""Tokens that must match for a position to be considered."""
MAX_MATCH = 64
"""Longest match that is told from a longer one."""
MAX_CANDIDATES = 24
"""Latest occurrences considered."""
MIN_CERTAINTY = 0.1
"""The draft ends where the product of its vote shares falls below this."""


class SuffixIndex:
    """Occurrences of every pair of tokens in a growing token list."""

    __slots__ = ("_done", "ends", "tokens")

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = tokens
        self.ends: dict[tuple[int, int], list[int]] = {}
        self._done = 0

    def extend(self) -> None:
        """Index pairs that end before the last token."""
        tokens = self.tokens
        for end in range(max(self._done, ANCHOR), len(tokens)):
            self.ends.setdefault((tokens[end - 2], tokens[end - 1]), []).append(end)
        self._done = max(self._done, len(tokens))

    def matches(self, tail: list[int]) -> list[tuple[int, int]]:
        """Return `(match length, position after it)` of the latest occurrences of the ending of `tail`."""
        if len(tail) < ANCHOR:
            return []
        found = []
        for end in self.ends.get((tail[-2], tail[-1]), [])[-MAX_CANDIDATES:]:
            length = ANCHOR
            limit = min(MAX_MATCH, end, len(tail))
            while length < limit and self.tokens[end - length - 1] == tail[-length - 1]:
                length += 1
            found.append((length, end))
        return found


class SuffixStore:
    """Past outputs by cache key, at most `limit` tokens a key and 64 keys: nothing crosses from key to key."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._indices: OrderedDict[str, SuffixIndex] = OrderedDict()

    def get(self, key: str) -> SuffixIndex | None:
        """Return the key's past outputs."""
        return self._indices.get(key)

    def add(self, key: str, output: list[int]) -> None:
        """Keep a finished output, forgetting the key's oldest half where the limit is reached."""
        if not self._limit:
            return
        before = self._indices.pop(key, None)
        kept = (before.tokens if before is not None else []) + output
        fits = len(kept) <= self._limit
        if before is not None and fits:
            before.tokens.extend(output)
            index = before
        else:
            index = SuffixIndex(kept if fits else kept[-self._limit // 2 :])
        index.extend()
        self._indices[key] = index
        while len(self._indices) > 64:
            self._indices.popitem(last=False)


def vote(candidates: list[tuple[int, list[int], int]], k: int) -> list[int]:
    """Return at most k tokens on which the `(match length, tokens, position)` agree; long matches count more."""
    if not candidates:
        return []
    best = max(length for length, _, _ in candidates)
    alive = [(2.0 ** (length - best), tokens, at) for length, tokens, at in candidates]
    draft: list[int] = []
    certainty = 1.0
    for step in range(min(k, 2 * best)):
        votes: dict[int, float] = {}
        for weight, tokens, at in alive:
            token = _following(tokens, at, step, draft)
            votes[token] = votes.get(token, 0.0) + weight
        token = max(votes, key=votes.__getitem__)
        certainty *= votes[token] / sum(votes.values())
        if certainty < MIN_CERTAINTY:
            break
        alive = [one for one in alive if _following(one[1], one[2], step, draft) == token]
        draft.append(token)
    return draft


def _following(tokens: list[int], at: int, step: int, draft: list[int]) -> int:
    """The token `step` after `at`; beyond the end the text goes on with what has been drafted."""
    place = at + step
    return tokens[place] if place < len(tokens) else draft[place - len(tokens)]


class SuffixProposer:
    """Method `suffix`."""

    def __init__(self, store: SuffixStore) -> None:
        self._store = store
        self._indices: dict[str, SuffixIndex] = {}

    def propose(self, wants: Sequence[tuple[Seq, SamplerState, int]]) -> list[Draft]:
        """Return what the earlier occurrences agree on."""
        drafts = []
        for sequence, _, k in wants:
            index = self._indices.get(sequence.request_id)
            if index is None:
                index = self._indices[sequence.request_id] = SuffixIndex(sequence.tokens)
            index.extend()
            tail = sequence.tokens[-MAX_MATCH:]
            candidates = [(length, index.tokens, end) for length, end in index.matches(tail)]
            past = self._store.get(sequence.request.cache_key)
            if past is not None:
                candidates += [
                    (length, past.tokens, end) for length, end in past.matches(tail) if end < len(past.tokens)
                ]
            drafts.append(Draft(vote(candidates, k)))
        return drafts

    def release(self, request_id: str) -> None:
        """Drop the request's index, keeping its output where past outputs may be used."""
        self._indices.pop(request_id, None)
