"""What a gateway holds of its policy over time: the one in force, where it came from, and what was refused since. Pure.

`gateway/policy_reload.py` moves it; `/readyz`, metrics and page show it. Whatever is refused, the last good one stays.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec

from gateway.policy.schema import Policy

Origin = Literal["file", "api", "rollback"]


class Rejected(msgspec.Struct, frozen=True):
    """A policy that could not be used."""

    source: str
    """The file, or `version <hash>`."""
    findings: list[str]
    at: float
    """Unix time."""


@dataclass(frozen=True, slots=True)
class Held:
    """The state; every step makes a new one."""

    policy: Policy
    origin: Origin = "file"
    activation: int = 0
    """Number of the activation in the database; 0 while it is not recorded."""
    since: float = 0.0
    """Unix time at which it came into force here."""
    rejected: Rejected | None = None
    rejections: int = 0
    """How many were refused since the start."""
    reloads: int = 0
    """How many came into force since the start."""

    def accept(self, policy: Policy, origin: Origin, activation: int, now: float) -> Held:
        """Put a policy into force."""
        if policy.hash == self.policy.hash:
            return replace(self, activation=activation or self.activation, rejected=None)
        return replace(
            self,
            policy=policy,
            origin=origin,
            activation=activation or self.activation,
            since=now,
            rejected=None,
            reloads=self.reloads + 1,
        )

    def refuse(self, source: str, findings: list[str], now: float) -> Held:
        """Keep what is in force and remember why something else is not."""
        return replace(self, rejected=Rejected(source, findings, now), rejections=self.rejections + 1)

    def forgive(self, source: str) -> Held:
        """Forget a refusal once its source is in order again."""
        wanted = self.rejected is not None and self.rejected.source == source
        return replace(self, rejected=None) if wanted else self

    def describe(self) -> dict[str, Any]:
        """Return what `/readyz` tells."""
        return {
            "hash": self.policy.hash,
            "name": self.policy.name,
            "origin": self.origin,
            "activation": self.activation or None,
            "since": self.since,
            "warnings": list(self.policy.warnings),
            "rejected": msgspec.to_builtins(self.rejected),
            "reloads": self.reloads,
            "rejections": self.rejections,
        }
