"""Which servers a rule's `priority` goes to. Asked by `gateway.serve` and `gateway.explain`.

vLLM takes `priority` in the body (lower is served earlier) and, depending on version, refuses or ignores it where it
was not started with `--scheduling-policy priority`. SGLang's field of the same name counts the other way round unless
it was started otherwise, so it is not sent there; the other kinds know no such field. A server that refuses it is
asked again without it and spared until it restarts.
"""

from __future__ import annotations

import logging

from gateway.errors import UpstreamError
from gateway.policy import Rule
from gateway.types import BackendState, Decision

log = logging.getLogger(__name__)
TAKING = frozenset({"vllm"})
"""Kinds of backends whose requests have a priority."""


class Priorities:
    """Remembers who refused; one per gateway process."""

    def __init__(self) -> None:
        self._refused: dict[str, str] = {}

    def of(self, rule: Rule, state: BackendState) -> int | None:
        """Return the priority to send under this rule, None where there is none or the backend does not take it."""
        if rule.priority is None or state.kind not in TAKING or self._refused.get(state.name) == state.epoch:
            return None
        return rule.priority

    def refuse(self, state: BackendState) -> None:
        """Note that this backend answers without a priority only, until it restarts."""
        if self._refused.get(state.name) != state.epoch:
            log.warning("backend %s takes no priority (vLLM: --scheduling-policy priority); none is sent", state.name)
        self._refused[state.name] = state.epoch


def is_refusal(error: Exception, decision: Decision) -> bool:
    """Tell whether an error may be about the priority that was sent."""
    return decision.priority is not None and isinstance(error, UpstreamError) and b"riority" in error.body
