"""Settings of memory that hold for a whole engine process. Called by `engine/__main__.py` before torch is loaded.

Left to itself, oneDNN keeps compiled code for a thousand sizes of products, and glibc keeps freed tensors in its heaps
once it has seen large ones: on the built-in model that added half a gigabyte within minutes of mixed traffic.

And torch lays weights into pages of 4 KiB unless told otherwise, although every step reads them from end to end: in
huge pages a step takes about a tenth less time.
"""

from __future__ import annotations

import ctypes
import os

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_MAPPED_FROM = 256 * 1024
"""Bytes from which an allocation is a mapping of its own, returned when freed. Fixed: glibc else raises it."""
_TRIM_FROM = 1024 * 1024
_PRIMITIVES = "160"
"""Enough for the sizes that `engine.lean_runner.padded` leaves, of five products a model."""


def set_memory_up() -> None:
    """Bound oneDNN's cache and ask for huge pages, unless the environment says otherwise; make glibc return memory."""
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", _PRIMITIVES)
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return
    mallopt(ctypes.c_int(_M_MMAP_THRESHOLD), ctypes.c_int(_MAPPED_FROM))
    mallopt(ctypes.c_int(_M_TRIM_THRESHOLD), ctypes.c_int(_TRIM_FROM))
