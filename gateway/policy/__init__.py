"""Policies: YAML → checked structs → the first rule that holds for a request. Pure."""

from gateway.policy.facts import Facts, facts_of, within
from gateway.policy.loader import content_hash, load_policy, parse_policy
from gateway.policy.match import enforced, match
from gateway.policy.schema import (
    P99,
    BackendConfig,
    BreakEven,
    ClassifierConfig,
    Policy,
    Rule,
    Store,
    Task,
)

__all__ = [
    "P99",
    "BackendConfig",
    "BreakEven",
    "ClassifierConfig",
    "Facts",
    "Policy",
    "Rule",
    "Store",
    "Task",
    "content_hash",
    "enforced",
    "facts_of",
    "load_policy",
    "match",
    "parse_policy",
    "within",
]
