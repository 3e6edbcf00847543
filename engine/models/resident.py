"""Gives back the memory of weights that were read from a mapped file and are no longer used in that form."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path

MAPS = Path("/proc/self/maps")


def release_file_pages(suffix: str = ".safetensors") -> int:
    """Drop the resident pages of mapped weight files and return the bytes concerned; what is still used comes back.

    A runner that packs weights its own way leaves the originals in memory, counted as the process's own. The mappings
    are never written to, so that the kernel reads a page again from the file where it is still wanted.
    """
    if not MAPS.is_file():
        return 0
    libc = ctypes.CDLL(None, use_errno=True)
    released = 0
    for line in MAPS.read_text("utf-8").splitlines():
        bounds, mode, *rest = line.split(maxsplit=5)
        if len(rest) < 4 or not rest[3].endswith(suffix) or "s" in mode:
            continue
        start, end = (int(part, 16) for part in bounds.split("-"))
        if libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), mmap.MADV_DONTNEED) == 0:
            released += end - start
    return released
