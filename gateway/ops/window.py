"""Windows of time as people write them: `30m`, `7d`. Pure; used by the page and by `breakeven report --since`."""

from __future__ import annotations

import re

from gateway.errors import InvalidRequest

WINDOWS = ("15m", "1h", "6h", "24h", "7d", "30d", "90d")
"""The windows that the page offers."""
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_MAX_S = 10 * 366 * 86400


def parse_window(text: str) -> float:
    """Return the seconds of `15m`, `24h`, `7d` or `2w`.

    Raises:
        InvalidRequest: it is none of these, or not between a second and ten years.
    """
    match = re.fullmatch(r"([0-9]{1,9})([smhdw])", text.strip())
    seconds = int(match[1]) * _UNITS[match[2]] if match else 0
    if not 1 <= seconds <= _MAX_S:
        raise InvalidRequest(f"since: {text!r}: expected a number with s, m, h, d or w, such as 7d", param="since")
    return float(seconds)


def window_name(seconds: float) -> str:
    """Return the shortest name of a window; the inverse of `parse_window` for those that the page offers."""
    for name in WINDOWS:
        if parse_window(name) == seconds:
            return name
    whole = round(seconds)
    for unit, size in reversed(_UNITS.items()):
        if whole % size == 0 and whole >= size:
            return f"{whole // size}{unit}"
    return f"{whole}s"
