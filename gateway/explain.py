"""What would happen to a request, and why: signals → rule → vetoes → numbers → arm.

For `breakeven policy explain` and `test`, and for `POST /v1/policy/explain` on a running gateway. Decides with the live
code, sends nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from engine.messages import CostTable
from gateway.errors import ApiError
from gateway.policy import BackendConfig, Facts, Policy, Rule
from gateway.policy.describe import rule_lines
from gateway.policy.facts import facts_of
from gateway.policy.trace import Step, trace
from gateway.policy.units import seconds_text, share_text
from gateway.priority import TAKING
from gateway.routing import decide, thresholds_of
from gateway.routing.snapshot import Bucket, Snapshot, build_snapshot
from gateway.types import Arm, BackendState, Classification, Decision, GenerateRequest

OUTSIDE_SHARES = 1.0 - 2.0**-40
"""A draw that is neither holdout nor probe: what the usual request takes."""
ASSUMED_ARMS = ("plain", "ngram-k2", "ngram-k4", "ngram-k8")
"""Arms of a backend with `arms: auto` while it cannot be asked."""


class Refusal(msgspec.Struct):
    """The error that the client would get."""

    message: str
    code: str | None = None
    param: str | None = None


class Explanation(msgspec.Struct, kw_only=True):
    """Everything that led to an arm, in order."""

    policy: str
    """Content hash."""
    policy_name: str
    task: str
    confidence: float
    source: str
    signals: dict[str, Any]
    facts: Facts
    rules: list[Step]
    """Rules looked at, in order, and why each holds or not."""
    rule: str
    """The rule that applies."""
    owner: str
    says: list[str]
    """What that rule says beyond the defaults."""
    arms: list[str]
    """Arms that the rule allows on these backends."""
    vetoes: list[str]
    state: str
    """`no_data` without statistics, else as in `Decision`."""
    numbers: dict[str, Any]
    arm: str | None
    path: str | None
    reason: str
    stored: str = "nothing"
    """How many of the requests under this rule have prompt and answer kept, and for how long."""
    priority: int | None = None
    """The rule's priority, where the arm's backend takes one."""
    observed: dict[str, str]
    """Rule in mode observe → the reason line it would have given."""
    refused: Refusal | None = None
    assumed: list[str] = msgspec.field(default_factory=list)
    """What was taken for granted because nothing could be asked."""


def explain(
    policy: Policy,
    request: GenerateRequest,
    classification: Classification,
    snapshot: Snapshot,
    states: Mapping[str, BackendState],
    *,
    prompt_tokens: int,
    load: int | None = None,
    conversation: str = "",
    share: float | None = None,
    assumed: list[str] | None = None,
) -> Explanation:
    """Explain one request. `load` replaces the backends' running sequences, `share` the conversation's place."""
    if load is not None:
        states = {name: msgspec.structs.replace(state, running=load) for name, state in states.items()}
    running = sum(state.running for state in states.values())
    facts = facts_of(request, classification, load=running, prompt_tokens=prompt_tokens, conversation=conversation)
    facts = facts if share is None else msgspec.structs.replace(facts, share=share)
    steps = trace(policy, facts)
    rules = {rule.name: rule for rule in policy.rules}
    rule = rules[steps[-1].rule]

    usual: dict[str, Any] = {"prompt_tokens": prompt_tokens, "draw": OUTSIDE_SHARES, "policy": policy.hash}

    def decided(by: Rule) -> Decision:
        return decide(request, classification, by, snapshot, states, **usual)

    decision, refused = _try(decided, rule)
    observing = [rules[step.rule] for step in steps if step.holds and step.mode == "observe"]
    return Explanation(
        policy=policy.hash,
        policy_name=policy.name,
        task=classification.task,
        confidence=classification.confidence,
        source=classification.source,
        signals=classification.signals,
        facts=facts,
        rules=steps,
        rule=rule.name,
        owner=rule.owner,
        says=rule_lines(rule),
        arms=[str(arm) for state in states.values() for arm in state.arms if rule.allows(arm)],
        vetoes=decision.vetoes if decision else [],
        state=decision.state if decision else "refused",
        numbers=decision.numbers if decision else {},
        arm=str(decision.arm) if decision else None,
        path=decision.arm.path if decision else None,
        reason=decision.reason if decision else refused.message if refused else "",
        stored=_stored(rule, request),
        priority=rule.priority if decision and states[decision.arm.backend].kind in TAKING else None,
        observed={by.name: _line(*_try(decided, by)) for by in observing},
        refused=refused,
        assumed=assumed or [],
    )


def _try(decided: Callable[[Rule], Decision], rule: Rule) -> tuple[Decision | None, Refusal | None]:
    try:
        return decided(rule), None
    except ApiError as error:
        return None, Refusal(error.message, error.code, error.param)


def _stored(rule: Rule, request: GenerateRequest) -> str:
    """Return what a rule keeps, in words."""
    if not rule.store.prompts:
        return "nothing"
    if request.body.get("store") is False:
        return "nothing: the request says store: false"
    share, time = share_text(rule.store.prompts), seconds_text(rule.store.retention)
    return f"prompt and answer of {share} of requests, for {time}"


def _line(decision: Decision | None, refused: Refusal | None) -> str:
    return decision.reason if decision else refused.message if refused else ""


def assumed_states(policy: Policy, model: str) -> dict[str, BackendState]:
    """Return the policy's backends at their best: healthy, with every arm that the policy names, for any model."""
    return {config.name: _assumed(config, model) for config in policy.backends}


def _assumed(config: BackendConfig, model: str) -> BackendState:
    ours = config.kind == "engine"
    labels = ASSUMED_ARMS if ours else ASSUMED_ARMS[:1]
    arms = config.arms if isinstance(config.arms, tuple) else tuple(Arm.parse(label, config.name) for label in labels)
    return BackendState(
        name=config.name,
        kind=config.kind,
        healthy=True,
        arms=arms,
        model=model,
        max_model_len=None,
        epoch="assumed",
        has_tool_template=None,
        per_request_stats=ours,
        per_request_switch=ours,
        adaptive=ours,
        running=0,
    )


class SavedSnapshot(msgspec.Struct):
    """Statistics of a gateway at one moment, as `GET /v1/policy/snapshot` gives them and a file keeps them."""

    at: float
    buckets: list[Bucket]
    costs: dict[str, CostTable]
    states: list[BackendState]

    def restore(self, policy: Policy) -> Snapshot:
        """Return what the decision reads under a policy."""
        arms = {state.name: state.arms for state in self.states}
        epochs = {state.name: state.epoch for state in self.states}
        views = thresholds_of(policy.rules)
        return build_snapshot(self.buckets, self.costs, now=self.at, arms=arms, epochs=epochs, thresholds=views)
