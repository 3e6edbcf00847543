"""Rules that can never apply, and rules that disagree about the same requests. Pure; warnings only."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.policy.diagnostics import Findings
from gateway.policy.nodes import Mapping
from gateway.policy.schema import Rule


def lint(rules: Sequence[tuple[Mapping, Rule]], tasks: tuple[str, ...], findings: Findings) -> None:
    """Warn about unreachable and overlapping rules."""
