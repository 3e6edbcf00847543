"""Whole numbers by column, packed small: what a told hour or day keeps instead of rows. Pure; for `gateway.db`.

Packed form: a version byte, the number of columns, for each its width, length and stored size, then the columns: signed
integers of the least width that holds them, compressed where that helps. A reader of few columns unpacks those only.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
VERSION = 1
_WIDTHS = (1, 2, 4, 8)
_HEAD, _COLUMN = struct.Struct("<BH"), struct.Struct("<BII")
_WORTH = 0.9
"""A column is stored compressed where less than so much of it is left: what hardly shrinks is read faster as it is."""
_DRAW_BITS = 21
"""A draw is within ±1,000,000."""


def pack(columns: Sequence[Ints]) -> bytes:
    """Return the columns in packed form; they may differ in length."""
    heads, bodies = [_HEAD.pack(VERSION, len(columns))], []
    for column in columns:
        width = _width(column)
        raw = column.astype(f"<i{width}").tobytes() if width else b""
        small = zlib.compress(raw, 6)
        bodies.append(small if len(small) < _WORTH * len(raw) else raw)
        heads.append(_COLUMN.pack(width, len(column), len(bodies[-1])))
    return b"".join([*heads, *bodies])


def unpack(packed: bytes, wanted: Sequence[int] | None = None) -> list[Ints]:
    """Undo `pack`, for all columns or only those wanted. Raises ValueError where the bytes are not of that form."""
    try:
        version, count = _HEAD.unpack_from(packed)
        heads = [_COLUMN.unpack_from(packed, _HEAD.size + at * _COLUMN.size) for at in range(count)]
    except struct.error as error:
        raise ValueError(f"packed columns are damaged: {error}") from error
    begins = [_HEAD.size + count * _COLUMN.size]
    for _, _, size in heads:
        begins.append(begins[-1] + size)
    if version != VERSION or begins[-1] != len(packed):
        raise ValueError(f"packed columns are cut off, or not of version {VERSION}")
    columns = range(count) if wanted is None else wanted
    return [_column(packed[begins[at] : begins[at + 1]], heads[at][0], heads[at][1]) for at in columns]


def _column(stored: bytes, width: int, length: int) -> Ints:
    if not width:
        return np.zeros(length, dtype=np.int64)
    try:
        raw = stored if len(stored) == width * length else zlib.decompress(stored)
        return np.frombuffer(raw, dtype=f"<i{width}", count=length).astype(np.int64)
    except (zlib.error, ValueError, TypeError) as error:
        raise ValueError(f"packed columns are damaged: {error}") from error


def _width(column: Ints) -> int:
    low, high = (int(column.min()), int(column.max())) if len(column) else (0, 0)
    if low == high == 0:
        return 0
    return next(width for width in _WIDTHS if -(1 << (8 * width - 1)) <= low and high < 1 << (8 * width - 1))


def sum_by(codes: Ints, values: Ints) -> tuple[Ints, Ints]:
    """Return the distinct codes, in order, and the sums of the values' columns (rows: what is summed) over each."""
    if not len(codes):
        return codes, values
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    starts = np.flatnonzero(np.append(True, np.diff(ordered) != 0))
    return ordered[starts], np.add.reduceat(values[:, order], starts, axis=1)


def code_of(high: Ints, draw: Ints) -> Ints:
    """Return a number for (a small number such as a cell's, a draw)."""
    return (high << _DRAW_BITS) + (draw + (1 << (_DRAW_BITS - 1)))


def code_parts(codes: Ints) -> tuple[Ints, Ints]:
    """Undo `code_of`."""
    return codes >> _DRAW_BITS, (codes & ((1 << _DRAW_BITS) - 1)) - (1 << (_DRAW_BITS - 1))


def pack_histograms(keys: Sequence[Ints], buckets: Ints, counts: Ints) -> bytes:
    """Pack histograms from their entries, which are each (key, bucket, count); those of one place are added up.

    A key is of several numbers: one array for each.
    """
    order = np.lexsort((buckets, *reversed(keys)))
    keys, buckets, counts = [key[order] for key in keys], buckets[order], counts[order]
    first, other = _changes(keys), _changes([*keys, buckets])
    counts = np.add.reduceat(counts, other) if len(counts) else counts
    keys, buckets = [key[other] for key in keys], buckets[other]
    starts = np.searchsorted(other, first)
    steps = np.diff(buckets, prepend=0)
    steps[starts] = 0
    lengths = np.diff(np.append(starts, len(buckets)))
    return pack([*(key[starts] for key in keys), buckets[starts], lengths, steps, counts])


def _changes(keys: Sequence[Ints]) -> Ints:
    """Return where another key begins."""
    fresh = np.zeros(len(keys[0]), dtype=bool)
    fresh[:1] = True
    for key in keys:
        fresh[1:] |= key[1:] != key[:-1]
    return np.flatnonzero(fresh)


def unpack_histograms(packed: bytes) -> tuple[list[Ints], Ints, Ints, Ints]:
    """Undo `pack_histograms`: the keys and lengths of the histograms, then the buckets and counts of all."""
    *keys, firsts, lengths, steps, counts = unpack(packed)
    if int(lengths.sum()) != len(steps) or len(steps) != len(counts) or (len(lengths) and lengths.min() < 1):
        raise ValueError("packed histograms do not fit their keys")
    if not len(lengths):
        return keys, lengths, steps, counts
    running = np.cumsum(steps)
    base = firsts - running[np.cumsum(lengths) - lengths]
    return keys, lengths, running + np.repeat(base, lengths), counts
