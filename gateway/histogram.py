"""Latency histograms with logarithmic buckets: exact merge, small packed form, distribution-free quantile bounds. Pure.

Called by the recorder (fills them), `gateway.db` (stores them packed), `gateway.routing` (p99 guard) and `gateway.ops`
(reports). Bucket i holds the values v with γ^(i−1) < v / 1 µs ≤ γ^i, γ = 1.02; its middle is within 1 % of each of
them. The bounds are those of order statistics (W. J. Conover, Practical Nonparametric Statistics, "Confidence interval
for a quantile"): they hold for every distribution. For p99 at 95 % an upper bound exists from n = 299: 0.99^299 < 0.05.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from gateway.types import CellKey

GAMMA = 1.02
"""Ratio of neighbouring bucket edges; relative error (γ − 1)/(γ + 1) = 0.99 %."""
UNIT_S = 1e-6
"""Upper edge of bucket 0, seconds: anything shorter is counted there."""
LAST_BUCKET = 1400
"""About 1.1e6 seconds (12 days): anything longer is counted there."""
VERSION = 1
"""First byte of the packed form."""

Metric = Literal["ttft", "itl", "tpot", "e2e"]
METRICS: tuple[Metric, ...] = ("ttft", "itl", "tpot", "e2e")

_LOG_GAMMA = math.log(GAMMA)


class LogHistogram:
    """Counts of latencies (seconds) in logarithmic buckets. Not thread-safe."""

    __slots__ = ("_counts", "_total")

    def __init__(self, counts: Mapping[int, int] | None = None) -> None:
        self._counts: dict[int, int] = {i: n for i, n in (counts or {}).items() if n}
        self._total = sum(self._counts.values())
        if any(n < 0 or not 0 <= i <= LAST_BUCKET for i, n in self._counts.items()):
            raise ValueError(f"bucket indices must be 0…{LAST_BUCKET} and counts positive")

    @classmethod
    def of(cls, values: Iterable[float]) -> LogHistogram:
        """Return a histogram of `values` (seconds). Raises ValueError as `add` does."""
        histogram = cls()
        for value in values:
            histogram.add(value)
        return histogram

    @property
    def count(self) -> int:
        """How many values it holds."""
        return self._total

    def counts(self) -> dict[int, int]:
        """Return a copy of the bucket counts (index → count), in no particular order."""
        return dict(self._counts)

    def add(self, seconds: float, count: int = 1) -> None:
        """Count a latency `count` times. Raises ValueError for a negative or non-finite value or a negative count."""
        if count < 0:
            raise ValueError(f"count must not be negative: {count}")
        if count:
            index = bucket_of(seconds)
            self._counts[index] = self._counts.get(index, 0) + count
            self._total += count

    def merge(self, other: LogHistogram) -> None:
        """Add all counts of `other`: exactly the histogram of both samples together."""
        for index, count in other._counts.items():
            self._counts[index] = self._counts.get(index, 0) + count
        self._total += other._total

    def quantile(self, q: float) -> float | None:
        """Return the q-quantile (seconds; within 1 % of the ⌈q·n⌉-th smallest value), None while empty."""
        _check_probability("q", q)
        if not self._total:
            return None
        return middle(self._bucket_at_rank(max(1, math.ceil(q * self._total - 1e-9))))

    def upper_bound(self, q: float, confidence: float = 0.95) -> float | None:
        """Return x with P(q-quantile ≤ x) ≥ confidence, whatever the distribution; None where n is too small.

        One-sided, from an order statistic, rounded up to its bucket's edge. See `needed_n`.
        """
        allowed = _most_below(self._total, 1 - q, 1 - confidence)
        return None if allowed < 0 else upper_edge(self._bucket_at_rank(self._total - allowed))

    def lower_bound(self, q: float, confidence: float = 0.95) -> float | None:
        """Return x with P(q-quantile ≥ x) ≥ confidence, whatever the distribution; None where n is too small."""
        below = _most_below(self._total, q, 1 - confidence)
        return None if below < 0 else lower_edge(self._bucket_at_rank(below + 1))

    def maximum(self) -> float | None:
        """Return the largest value (seconds; within 1 %), None while empty."""
        return middle(max(self._counts)) if self._counts else None

    def count_above(self, seconds: float) -> int:
        """Return how many values lie in buckets above that of `seconds`."""
        limit = bucket_of(seconds)
        return sum(count for index, count in self._counts.items() if index > limit)

    def encode(self) -> bytes:
        """Pack: the version, then for each non-empty bucket in order (index step, count) as base-128 numbers."""
        packed = bytearray((VERSION,))
        previous = 0
        for index in sorted(self._counts):
            _append_varint(packed, index - previous)
            _append_varint(packed, self._counts[index])
            previous = index
        return bytes(packed)

    @classmethod
    def decode(cls, packed: bytes) -> LogHistogram:
        """Undo `encode`. Raises ValueError where the bytes are not of that form."""
        return cls.merge_encoded((packed,))

    @classmethod
    def merge_encoded(cls, blobs: Iterable[bytes]) -> LogHistogram:
        """Merge many packed histograms in one pass of numpy. Raises ValueError where one is not of that form."""
        dense = np.zeros(LAST_BUCKET + 1, dtype=np.int64)
        blobs = list(blobs)
        if blobs:
            _, indices, counts = decode_entries(blobs)
            np.add.at(dense, indices, counts)
        return cls({int(index): int(dense[index]) for index in np.flatnonzero(dense)})

    def _bucket_at_rank(self, rank: int) -> int:
        """Return the bucket of the rank-th smallest value, 1 ≤ rank ≤ n."""
        seen = 0
        for index in sorted(self._counts):
            seen += self._counts[index]
            if seen >= rank:
                return index
        raise AssertionError(f"rank {rank} beyond {self._total}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LogHistogram) and self._counts == other._counts

    def __hash__(self) -> int:
        return hash(frozenset(self._counts.items()))

    def __repr__(self) -> str:
        return f"LogHistogram(count={self._total}, p50={self.quantile(0.5)}, p99={self.quantile(0.99)})"


class LatencyCell(msgspec.Struct, frozen=True):
    """The latencies of one cell in one span of time, as kept in the database."""

    key: CellKey
    metric: Metric
    minute: int
    """Unix time // 60 of the span's beginning."""
    histogram: LogHistogram
    minutes: int = 1
    """Length of the span: 1, 60 (hour rows) or 1440 (day rows)."""


def bucket_of(seconds: float) -> int:
    """Return the bucket index of a latency. Raises ValueError for a negative or non-finite value."""
    if not 0 <= seconds < math.inf:
        raise ValueError(f"a latency must be a finite number of seconds, not negative: {seconds!r}")
    if seconds <= UNIT_S:
        return 0
    return min(LAST_BUCKET, math.ceil(math.log(seconds / UNIT_S) / _LOG_GAMMA - 1e-9))


def upper_edge(index: int) -> float:
    """Return the largest value of a bucket, seconds."""
    return UNIT_S * math.exp(index * _LOG_GAMMA)


def lower_edge(index: int) -> float:
    """Return the edge below a bucket, seconds; 0 for the first."""
    return 0.0 if index == 0 else upper_edge(index - 1)


def middle(index: int) -> float:
    """Return the value that stands for a bucket, seconds: within 1 % of all its values (but those of bucket 0)."""
    return upper_edge(index) * 2 / (GAMMA + 1)


def needed_n(q: float, confidence: float = 0.95) -> int:
    """Return the smallest n from which `upper_bound(q, confidence)` exists: 299 for p99 at 95 %."""
    _check_probability("q", q)
    _check_probability("confidence", confidence)
    return math.ceil(math.log(1 - confidence) / math.log(q))


@lru_cache(maxsize=4096)
def _most_below(n: int, p: float, alpha: float) -> int:
    """Return the largest j with P(Binomial(n, p) ≤ j) ≤ alpha, −1 where there is none (n too small)."""
    _check_probability("q", p)
    _check_probability("confidence", alpha)
    if n <= 0 or n * math.log1p(-p) > math.log(alpha):
        return -1
    spread = 10 * math.sqrt(n * p * (1 - p)) + 10
    low, high = max(0, math.floor(n * p - spread)), min(n, math.ceil(n * p + spread))
    first = math.lgamma(n + 1) - math.lgamma(low + 1) - math.lgamma(n - low + 1)
    first += low * math.log(p) + (n - low) * math.log1p(-p)
    j = np.arange(low, high, dtype=np.float64)
    steps = np.log((n - j) / (j + 1)) + (math.log(p) - math.log1p(-p))
    log_pmf = first + np.concatenate(([0.0], np.cumsum(steps)))
    return low + int(np.searchsorted(np.cumsum(np.exp(log_pmf)), alpha, side="right")) - 1


def _check_probability(name: str, value: float) -> None:
    if not 0 < value < 1:
        raise ValueError(f"{name} must be between 0 and 1: {value!r}")


def _append_varint(packed: bytearray, value: int) -> None:
    while value > 0x7F:
        packed.append(value & 0x7F | 0x80)
        value >>= 7
    packed.append(value)


def decode_entries(blobs: Sequence[bytes]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return how many buckets each packed histogram fills, then the buckets and counts of all, one after the other.

    Raises ValueError where one is not of that form.
    """
    if any(not blob or blob[0] != VERSION for blob in blobs):
        raise ValueError(f"not a packed histogram of version {VERSION}")
    raw = np.frombuffer(b"".join(blob[1:] for blob in blobs), dtype=np.uint8)
    if not len(raw):
        nothing = np.zeros(0, dtype=np.int64)
        return np.zeros(len(blobs), dtype=np.int64), nothing, nothing
    last = raw < 0x80
    ends = np.flatnonzero(last)
    starts = np.concatenate(([0], ends[:-1] + 1))
    if not len(ends) or not last[-1] or int((ends - starts).max()) > 8:
        raise ValueError("packed histogram is cut off or holds a number that is too long")
    position = np.arange(len(raw)) - np.repeat(starts, ends - starts + 1)
    digits = (raw & 0x7F).astype(np.int64) << (7 * position)
    values = np.add.reduceat(digits, starts)
    sizes = np.array([len(blob) - 1 for blob in blobs])
    borders = np.searchsorted(ends, np.cumsum(sizes) - sizes)  # of each blob's first number
    numbers = np.diff(np.append(borders, len(values)))
    if np.any(numbers % 2):
        raise ValueError("packed histogram holds an index without a count")
    steps, counts = values[0::2], values[1::2]
    running = np.cumsum(steps)
    first = borders // 2
    before = np.where(first > 0, running[np.maximum(first - 1, 0)], 0)
    indices = running - np.repeat(before, numbers // 2)
    if np.any((indices < 0) | (indices > LAST_BUCKET)) or np.any(counts <= 0):
        raise ValueError("packed histogram holds an impossible bucket or count")
    return numbers // 2, indices, counts
