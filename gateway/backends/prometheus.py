"""Reads an engine's Prometheus page. Pure; called by the adapters."""

from __future__ import annotations

import math
import re

_SAMPLE = re.compile(r'^([a-zA-Z_:][\w:]*)(?:\{(?:[^"}]|"(?:\\.|[^"\\])*")*\})?\s+(\S+)', re.MULTILINE)


def read_metrics(page: str) -> dict[str, float]:
    """Return the sum over labels of each sample of a Prometheus page (`process_start_time_seconds`: the latest)."""
    found: dict[str, float] = {}
    for name, text in _SAMPLE.findall(page):
        try:
            value = float(text)
        except ValueError:
            continue
        if name == "process_start_time_seconds":
            found[name] = max(value, found.get(name, 0.0))
        elif not math.isnan(value):
            found[name] = found.get(name, 0.0) + value
    return found
