"""Which answers a rule's `audit` takes, and what is handed over of each. Pure; for `gateway.serve`."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gateway.backends import Backend
from gateway.fingerprint import in_share
from gateway.policy import Rule
from gateway.tap import Tap
from gateway.types import Arm, GenerateRequest


def audited(rule: Rule, request: GenerateRequest, secret: bytes) -> bool:
    """Tell whether a request is one of its rule's share: greedy, of one choice. Free where the rule audits nothing."""
    if not rule.audit or request.temperature != 0 or request.n != 1:
        return False
    return in_share(rule.audit, request, secret, b"policy-audit")


class Served(msgspec.Struct):
    """A complete answer that a client got, to be compared with that of the other path."""

    request: GenerateRequest
    backends: Mapping[str, Backend]
    """Those of the policy under which it was served."""
    policy: str
    """That policy's hash."""
    rule: Rule
    task: str
    arm: Arm
    tap: Tap
    """The text, as it passed."""
    finish_reason: str
    prompt_tokens: int
