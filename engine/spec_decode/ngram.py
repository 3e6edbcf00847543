"""Prompt lookup: what followed the last few tokens when they occurred before. Called by the core as method `ngram`."""

from __future__ import annotations

from collections.abc import Sequence

from engine.sampler import Draft, SamplerState
from engine.sequence import Sequence as Seq

MAX_N = 4
MIN_N = 2


class NgramIndex:
    """Where each n-gram of a growing token list occurred last, for every n from `MIN_N` to `MAX_N`."""

    __slots__ = ("_done", "_ends")

    def __init__(self) -> None:
        self._ends: dict[tuple[int, ...], int] = {}
        self._done = 0

    def extend(self, tokens: list[int]) -> None:
        """Index n-grams that end before the last token: the tail itself must not be found."""
        ends = self._ends
        for end in range(max(self._done, MIN_N), len(tokens)):
            for n in range(MIN_N, min(MAX_N, end) + 1):
                ends[tuple(tokens[end - n : end])] = end
        self._done = max(self._done, len(tokens))

    def find(self, tail: list[int], least: int = MIN_N) -> int | None:
        """Return the position after the latest occurrence of `tail`'s longest known ending, `least` tokens or more."""
        for n in range(min(MAX_N, len(tail)), least - 1, -1):
            end = self._ends.get(tuple(tail[-n:]))
            if end is not None:
                return end
        return None


def copy_from(source: list[int], start: int, k: int) -> list[int]:
    """Return k tokens of `source` from `start`; where they reach its end, they go on with themselves (a repetition)."""
    piece = source[start : start + k]
    period = len(piece)
    while period and len(piece) < k:
        piece.append(piece[-period])
    return piece


class NgramProposer:
    """Method `ngram`: looks in the request's own prompt and output."""

    def __init__(self, least: int = MIN_N) -> None:
        """`least` tokens must match."""
        self._least = least
        self._indices: dict[str, NgramIndex] = {}

    def propose(self, wants: Sequence[tuple[Seq, SamplerState, int]]) -> list[Draft]:
        """Return what followed the longest match; empty where the last tokens are new."""
        drafts = []
        for sequence, _, k in wants:
            index = self._indices.setdefault(sequence.request_id, NgramIndex())
            index.extend(sequence.tokens)
            start = index.find(sequence.tokens[-MAX_N:], self._least)
            drafts.append(Draft(copy_from(sequence.tokens, start, k) if start is not None else []))
        return drafts

    def release(self, request_id: str) -> None:
        """Drop the request's index."""
        self._indices.pop(request_id, None)
