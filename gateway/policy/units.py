"""Numbers with their units as a policy writes them: `10m`, `80ms`, `5%`. Pure; ValueErrors say what was expected."""

from __future__ import annotations

import re

SECONDS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_NUMBER = re.compile(r"[+-]?(\d{1,15}(\.\d{0,15})?|\.\d{1,15})([eE][+-]?\d{1,2})?", re.ASCII)
_INTEGER = re.compile(r"[+-]?\d{1,15}", re.ASCII)
_DURATION = re.compile(r"(\d{1,15}(?:\.\d{1,15})?|\.\d{1,15})\s?(us|µs|ms|s|m|h|d|w)", re.ASCII)
_TRUE = frozenset({"true", "yes", "on"})
_FALSE = frozenset({"false", "no", "off"})
DURATION_PATTERN = r"^([0-9]+(\.[0-9]+)?|\.[0-9]+) ?(us|µs|ms|s|m|h|d|w)$"
PERCENT_PATTERN = r"^([0-9]+(\.[0-9]+)?|\.[0-9]+) ?%$"


def number(text: str) -> float:
    """Read a decimal number of at most 15 digits before and after the point."""
    if not _NUMBER.fullmatch(text):
        raise ValueError("expected a number of at most 15 digits")
    return float(text)


def integer(text: str) -> int:
    """Read a whole number of at most 15 digits."""
    if not _INTEGER.fullmatch(text):
        raise ValueError("expected a whole number of at most 15 digits")
    return int(text)


def duration(text: str) -> float:
    """Read a time with its unit; return seconds."""
    found = _DURATION.fullmatch(text)
    if not found:
        hint = "expected a time with its unit, such as 80ms, 30s, 10m, 2h or 30d"
        if _NUMBER.fullmatch(text):
            raise ValueError(f"{hint} (the unit is missing: did you mean '{text}s' or '{text}ms'?)")
        raise ValueError(hint)
    return float(found[1]) * SECONDS[found[2]]


def share(text: str) -> float:
    """Read a share: `5%`, or a fraction from 0 to 1; `off` and `none` are 0, `all` is 1."""
    if text.lower() in ("off", "none"):
        return 0.0
    if text.lower() == "all":
        return 1.0
    body = text[:-1].rstrip() if text.endswith("%") else text
    if not _NUMBER.fullmatch(body):
        raise ValueError("expected a share such as 5% or 0.05")
    value = float(body) / 100 if text.endswith("%") else float(body)
    if not 0 <= value <= 1:
        hint = f" (did you mean '{body}%'?)" if 1 < value <= 100 and not text.endswith("%") else ""
        raise ValueError(f"a share lies between 0% and 100%{hint}")
    return value


def flag(text: str) -> bool:
    """Read yes or no."""
    word = text.lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise ValueError("expected true or false")


def seconds_text(value: float) -> str:
    """Write seconds in the unit that a reader would choose: `80ms`, `10m`, `30d`."""
    for unit in ("d", "h", "m", "s"):
        if value >= SECONDS[unit] and abs(value / SECONDS[unit] - round(value / SECONDS[unit], 3)) < 1e-9:
            return f"{value / SECONDS[unit]:g}{unit}"
    return f"{value * 1e3:g}ms"


def share_text(value: float) -> str:
    """Write a share in percent."""
    return f"{value * 100:.6g}%"
