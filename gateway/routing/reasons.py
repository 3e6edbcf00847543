"""Reasons as one ASCII line for `x-breakeven-reason`, with the numbers that decided. Pure; called by `decide`."""

from __future__ import annotations

import math
from typing import Any

from gateway.routing.estimates import Estimate
from gateway.types import Arm

MAX_LENGTH = 240
"""A header stays well below what proxies accept."""


def comparison(estimate: Estimate) -> str:
    """Return `a 2.91 > 1 + 0.00 + 0.21 (412 rounds, gain 2.4x)` with what is known of an arm."""
    parts = [f"{round(estimate.rounds)} rounds"]
    if estimate.undrafted >= 0.005:
        parts.append(f"{estimate.undrafted:.0%} undrafted")
    if estimate.timed and estimate.r > 0:
        parts.append(f"gain {gain(estimate.gain)}x")
    tail = f"({', '.join(parts)})"
    if estimate.a is None:
        known = estimate.break_even
        return f"a unknown, break-even {known:.2f} {tail}" if known is not None else f"a and costs unknown {tail}"
    if estimate.alpha is not None and estimate.beta is not None:
        limit = f"1 + {estimate.alpha:.2f} {'+' if estimate.beta >= 0 else '-'} {abs(estimate.beta):.2f}"
    elif estimate.measured_sum is not None:
        limit = f"1 + {estimate.measured_sum:.2f}"
    else:
        return f"a {estimate.a:.2f}, costs unknown {tail}"
    sign = ">" if estimate.a > (estimate.break_even or 0.0) else "<="
    return f"a {estimate.a:.2f} {sign} {limit} {tail}"


def gain(value: float) -> str:
    """Return a gain with one decimal from 2 on, else two: 2.4, 1.04, 0.93."""
    return f"{value:.1f}" if value >= 1.95 else f"{value:.2f}"


def line(arm: Arm, text: str) -> str:
    """Return `<path> <arm>: <text>` in ASCII, cut to what a header may hold."""
    whole = f"{arm.path} {arm}: {text}"
    return whole.encode("ascii", "replace").decode()[:MAX_LENGTH].replace("\r", " ").replace("\n", " ")


def numbers_of(estimate: Estimate) -> dict[str, Any]:
    """Return an arm's numbers as JSON values, null where unknown."""
    known = estimate.timed
    return {
        "a": _rounded(estimate.a),
        "z": _rounded(estimate.z),
        "alpha": _rounded(estimate.alpha),
        "beta": _rounded(estimate.beta),
        "alpha_plus_beta": _rounded(estimate.measured_sum),
        "break_even": _rounded(estimate.break_even),
        "gain": _rounded(estimate.gain) if known else None,
        "r": _rounded(estimate.r) if known else None,
        "se": _rounded(estimate.se) if known else None,
        "rounds": round(estimate.rounds),
        "requests": round(estimate.requests),
        "undrafted": _rounded(estimate.undrafted),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, 4)
