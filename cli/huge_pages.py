"""Moves the memory that a process holds into huge pages (Linux). Called by `gateway.py` once everything is loaded.

The gateway's objects lie scattered over some hundred MiB, and under virtual machines finding a 4 KiB page that was not
used a moment ago costs more than reading it: in huge pages a request took about a tenth less processor time.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from pathlib import Path

_HUGE = 2 << 20
_MADV_HUGEPAGE, _MADV_COLLAPSE = 14, 25


def use_huge_pages() -> int:
    """Move what lies in private anonymous memory; return how many huge pages that made. Never fails.

    A kernel that does not know how (before 6.1) or is set not to (`transparent_hugepage` is `never`) changes nothing.
    """
    if sys.platform != "linux":
        return 0
    made = 0
    with contextlib.suppress(OSError, AttributeError, ValueError):
        madvise = ctypes.CDLL(None, use_errno=True).madvise
        madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        for first, last in _regions(Path("/proc/self/maps").read_text("ascii", "replace")):
            if madvise(first, last - first, _MADV_HUGEPAGE) == 0:
                made += sum(madvise(page, _HUGE, _MADV_COLLAPSE) == 0 for page in range(first, last, _HUGE))
    return made


def _regions(maps: str) -> list[tuple[int, int]]:
    """Return the whole huge pages within each private, writable, anonymous mapping of `/proc/PID/maps`."""
    found = []
    for line in maps.splitlines():
        span, rights, _, device, _, *name = line.split()
        if rights != "rw-p" or device != "00:00" or (name and name != ["[heap]"]):
            continue
        low, high = (int(end, 16) for end in span.split("-"))
        first, last = -(-low // _HUGE) * _HUGE, high // _HUGE * _HUGE
        if first < last:
            found.append((first, last))
    return found
