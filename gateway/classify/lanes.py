"""Vectors of weights as single integers, one 32-bit lane per task (used by `classifier`).

A request needs the sum of some hundred short vectors. Python adds integers of any length faster than numpy gathers,
converts and multiplies so few rows, keeps no temporary arrays, and the sums are exact on every machine.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import numpy as np
import numpy.typing as npt

BYTES: Final = 4
LARGEST: Final = 2**31 - 1
"""What no lane of a sum may exceed; `artefact` sees to it when a classifier is loaded."""


def pack(rows: npt.NDArray[Any]) -> list[int]:
    """Return one integer per row of whole numbers: the sum of each times 2^(32 * lane)."""
    lanes = rows.astype(np.int64)
    for lane in range(1, lanes.shape[1]):  # a negative lane borrows from the one above
        lanes[:, lane] -= lanes[:, lane - 1] < 0
    data, width = lanes.astype("<i4").tobytes(), BYTES * lanes.shape[1]
    return [int.from_bytes(data[at : at + width], "little", signed=True) for at in range(0, len(data), width)]


def unpack(value: int, lanes: int) -> tuple[int, ...]:
    """Return the lanes of `value`. Each may be one too low, where the lane below it is negative."""
    return struct.unpack(f"<{lanes}i", value.to_bytes(BYTES * lanes, "little", signed=True))
