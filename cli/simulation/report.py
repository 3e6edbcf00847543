"""A simulation's result as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def render(result: Mapping[str, Any]) -> str:
    """Return a table of relative times (1 is always off; lower is faster) and what routing cost."""
    settings = result["settings"]
    lines = [
        f"{settings['requests_per_task']} requests x {len(settings['tasks'])} tasks x {settings['seeds']} seeds, "
        f"method {settings['method']}, k {','.join(map(str, settings['draft_lengths']))}, batch {settings['batch']}",
        f"{'time relative to always off':34} {'mean':>8} {'sd':>8} {'max':>8}",
    ]
    rows = [*_rows(result["relative_time"]), ("regret against task_oracle", result["regret"])]
    rows += [("switches", result["switches"]), ("probe_share", result["probe_share"])]
    rows += [(f"besides: {name}", x) for name, x in result["costs_apart"].items()]
    lines += [f"{name:34} {x['mean']:8.4f} {x['sd']:8.4f} {x['max']:8.4f}" for name, x in rows]
    return "\n".join(lines)


def _rows(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Mapping[str, float]]]:
    for name, value in tree.items():
        if "mean" in value:
            yield prefix + name, value
        else:
            yield from _rows(value, f"{prefix}{name} k=")
