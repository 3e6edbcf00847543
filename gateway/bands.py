"""The bands in which statistics are kept (design: load 1, 2–3, 4–7, …; temperature; context). Pure."""

from __future__ import annotations

TEMPERATURE_BANDS = ("0", "0.5", "1", "hot")
"""0, ≤ 0.5, ≤ 1, > 1."""
CONTEXT_BANDS = ("512", "2k", "8k", "32k", "long")
"""< 512, < 2k, < 8k, < 32k, ≥ 32k tokens."""
_CONTEXT_EDGES = (512, 2048, 8192, 32768)


def load_band(running: float) -> int:
    """Return the lower edge of the load band of `running` sequences: 1, 2, 4, 8 and so on."""
    return 1 << (max(1, int(running)).bit_length() - 1)


def temperature_band(temperature: float) -> str:
    """Return the band of a sampling temperature."""
    if temperature <= 0:
        return "0"
    if temperature <= 0.5:
        return "0.5"
    return "1" if temperature <= 1 else "hot"


def context_band(tokens: float) -> str:
    """Return the band of a context length in tokens."""
    for edge, name in zip(_CONTEXT_EDGES, CONTEXT_BANDS, strict=False):
        if tokens < edge:
            return name
    return CONTEXT_BANDS[-1]
