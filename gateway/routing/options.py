"""The arms that may serve one request, with what is known of each. Pure; the first half of `decide`.

Vetoes come first, then the rule and what the client forces.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateway.bands import context_band, load_band, temperature_band
from gateway.errors import InvalidRequest, NotFound, Unavailable
from gateway.policy.facts import has_images
from gateway.policy.schema import Rule
from gateway.routing.estimates import PLAIN_KEY, ArmKey, Estimate
from gateway.routing.guard import TRIAL_SHARE
from gateway.routing.snapshot import Node, NodeKey, Snapshot
from gateway.routing.vetoes import veto, window_exceeded
from gateway.types import Arm, BackendState, GenerateRequest


@dataclass(slots=True)
class Ask:
    """One request as the decision sees it."""

    request: GenerateRequest
    task: str
    rule: Rule
    snapshot: Snapshot
    backends: Mapping[str, BackendState]
    prompt_tokens: int
    draw: float
    """Uniform in [0, 1) from a keyed hash of the request."""
    conversation: str
    home: str = ""
    """The backend that has this conversation's prefix in its cache, where known."""


@dataclass(slots=True)
class Option:
    """An arm that may serve this request, with what is known of it."""

    arm: Arm
    state: BackendState
    """As of when it was weighed: how busy a backend is now stands in `Ask.backends`."""
    place: NodeKey
    node: Node
    estimate: Estimate
    seconds: float | None
    """Expected seconds per token; None where neither costs nor times are known."""

    @property
    def key(self) -> ArmKey:
        """The arm within its backend."""
        return PLAIN_KEY if self.arm.k == 0 else (self.arm.method, self.arm.k)


def servable(ask: Ask, vetoes: list[str]) -> list[Arm]:
    """Return the arms that the rule allows and no veto hits; list the vetoes. Raises where nothing is left."""
    rule = ask.rule
    arms: list[Arm] = []
    outside: list[Arm] = []
    for name in sorted(ask.backends):
        state = ask.backends[name]
        for arm in state.arms:
            why = veto(arm, state, ask.request, ask.prompt_tokens)
            if why is not None:
                if rule.lists(arm):
                    vetoes.append(f"{arm}: {why}")
            elif rule.allows(arm):
                arms.append(arm)
            else:
                outside.append(arm)
    if not arms and rule.path != "auto":
        arms = [arm for arm in outside if rule.lists(arm)]  # the path cannot be had: better the other one than none
    if not arms:
        _refuse(ask, vetoes)
    return arms


def _refuse(ask: Ask, vetoes: Sequence[str]) -> None:
    request, prompt_tokens, backends = ask.request, ask.prompt_tokens, ask.backends
    states = [state for state in backends.values() if state.healthy]
    if states and all(window_exceeded(state, request, prompt_tokens) for state in states):
        window = max(state.max_model_len or 0 for state in states)
        raise InvalidRequest(
            f"This model's maximum context length is {window} tokens. However, you requested "
            f"{prompt_tokens + (request.max_tokens or 1)} tokens ({prompt_tokens} in the messages, "
            f"{request.max_tokens or 1} in the completion).",
            param="messages" if request.endpoint == "chat" else "prompt",
            code="context_length_exceeded",
        )
    if states and request.body.get("tools") and all(state.has_tool_template is False for state in states):
        raise InvalidRequest("tools: this model has no tool template", param="tools", code="unsupported_parameter")
    if states and all(state.images is False for state in states) and has_images(request.body.get("messages")):
        raise InvalidRequest("messages: this model sees no images", param="messages", code="unsupported_parameter")
    why = "; ".join(vetoes[:4]) or "; ".join(f"{s.name}: {s.detail or 'no arm allowed'}" for s in backends.values())
    raise Unavailable(f"no arm can answer: {why or 'no backend'}", headers={"retry-after": "1"})


def forced_by(ask: Ask, arms: Sequence[Arm]) -> list[Arm] | None:
    """Return the arms that the client forces, None where it leaves the choice to us."""
    request, backends = ask.request, ask.backends
    if not request.identity.may_force:
        return None
    if request.arm_wish is not None:
        if request.arm_wish in arms:
            return [request.arm_wish]
        known = [arm for state in backends.values() for arm in state.arms]
        if request.arm_wish not in known:
            names = ", ".join(str(arm) for arm in known)
            raise NotFound(f"x-breakeven-arm: no arm {request.arm_wish}; expected one of {names}", code="arm_not_found")
        raise Unavailable(f"x-breakeven-arm: {request.arm_wish} cannot serve this request now (rule {ask.rule.name})")
    if request.path_wish == "auto":
        return None
    wanted = [arm for arm in arms if arm.path == request.path_wish]
    return wanted or None


def options_of(ask: Ask, arms: Sequence[Arm]) -> list[Option]:
    """Look up what is known of each arm at the request's bands and its backend's load."""
    bands = (temperature_band(ask.request.temperature), context_band(ask.prompt_tokens))
    options = []
    for arm in arms:
        state = ask.backends[arm.backend]
        task = ask.snapshot.finest(arm.backend, ask.task, ask.request.application)
        place = (arm.backend, task, *bands, load_band(load_of(state)))
        node = ask.snapshot.node(place)
        if ask.snapshot.views or ask.snapshot.thresholds:
            note_asked(ask, place)
        if state.adaptive:
            ask.snapshot.controlled.add(arm.backend)
        estimate = node.evidence.find((arm.method, arm.k)) or Estimate((arm.method, arm.k))
        plain_s = node.evidence.plain_s
        known = not arm.k or estimate.alpha is not None or estimate.measured
        seconds = estimate.r * plain_s if known and plain_s is not None else None
        options.append(Option(arm, state, place, node, estimate, seconds))
    return options


def note_asked(ask: Ask, place: NodeKey) -> None:
    """Note by which view such requests are decided, where they are shown as well."""
    for where in (place, shown_at(place, ask.task)):
        ask.snapshot.asked[where] = ask.snapshot.thresholds


def shown_at(place: NodeKey, task: str) -> NodeKey:
    """Return the place whose row shows what is decided at `place`: applications have none of their own."""
    return (place[0], task, *place[2:])


def load_of(state: BackendState) -> int:
    """Return running sequences at the backend with this request."""
    return max(1, state.running + 1)


def guarded(ask: Ask, options: list[Option], vetoes: list[str]) -> list[Option]:
    """Return the options that the rule's p99 guard leaves: an arm that fails takes every longer draft with it.

    An arm on trial is left in for a share of requests. Where nothing else is left, the guard gives way: a slow answer
    beats none.
    """
    rule = ask.rule.p99
    if rule is None:
        return options
    shortest: dict[tuple[str, str], int] = {}
    for option in options:
        arm = option.arm
        place = (
            arm.backend,
            arm.method,
            arm.k,
            ask.task,
            context_band(ask.prompt_tokens),
            load_band(load_of(option.state)),
        )
        standing = ask.snapshot.guard.standing(rule, place) if arm.k else None
        tried = standing is not None and standing.status == "trial" and (ask.draw * 997.0) % 1.0 < TRIAL_SHARE
        if standing is None or tried or standing.status not in ("ineligible", "trial"):
            continue
        vetoes.append(f"{arm}: {standing.text}")
        where = (arm.backend, arm.method)
        shortest[where] = min(arm.k, shortest.get(where, arm.k))
    left = [o for o in options if o.arm.k == 0 or o.arm.k < shortest.get((o.arm.backend, o.arm.method), o.arm.k + 1)]
    return left or options


def hash_draw(text: str, person: bytes) -> float:
    """Return a number in [0, 1) that is the same for a text, and another one for each purpose (`person`)."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=7, person=person).digest()
    return int.from_bytes(digest, "big") / 2**56
