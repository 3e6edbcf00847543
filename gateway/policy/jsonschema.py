"""The language as JSON Schema, so that editors complete and check policies while they are written. Pure.

`policies/schema.json` is this module's output (`breakeven policy schema`); a test keeps it current.
"""

from __future__ import annotations

from typing import Any

from gateway.policy.language import POLICY
from gateway.policy.when import When

DRAFT = "https://json-schema.org/draft/2020-12/schema"


def policy_schema() -> dict[str, Any]:
    """Return the JSON Schema of a policy file."""
    return {
        "$schema": DRAFT,
        "$id": "urn:breakeven:policy:1",
        "title": "Breakeven policy",
        "description": "Which requests may take which arms, under which thresholds, and who owns the rule.",
        **POLICY.schema(),
        "$defs": {"when": When().definition()},
    }
