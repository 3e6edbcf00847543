"""Keeps a long-running engine at the size it starts with. Called by `engine/__main__.py` before torch is loaded.

Left to itself, oneDNN keeps compiled code for a thousand sizes of products, and glibc keeps freed tensors in its heaps
once it has seen large ones: on the built-in model that added half a gigabyte within minutes of mixed traffic.
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


def limit_growth() -> None:
    """Bound oneDNN's cache, unless the environment does, and make glibc return freed memory. Elsewhere a no-op."""
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", _PRIMITIVES)
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return
    mallopt(ctypes.c_int(_M_MMAP_THRESHOLD), ctypes.c_int(_MAPPED_FROM))
    mallopt(ctypes.c_int(_M_TRIM_THRESHOLD), ctypes.c_int(_TRIM_FROM))
