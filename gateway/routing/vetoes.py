"""Hard vetoes: arms that cannot serve a request exactly, whatever they would gain. Pure; the first step of `decide`.

The parameters are those that engines reject, ignore or get wrong under speculation (vLLM 0.33: `min_p` and `logit_bias`
are refused; SGLang 0.5: both misapplied, penalties approximate; llama.cpp: log-probabilities come back as 0.0). Our own
engine has one sampler for both paths and needs none of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.policy.facts import has_images
from gateway.types import Arm, BackendState, GenerateRequest

PENALTIES = ("presence_penalty", "frequency_penalty", "repetition_penalty")
INEXACT: dict[str, tuple[str, ...]] = {
    "engine": (),
    "vllm": ("min_p", "logit_bias"),
    "sglang": ("min_p", "logit_bias", *PENALTIES, "min_tokens"),
    "llamacpp": ("logprobs", "top_logprobs"),
    "openai": ("min_p", "logit_bias", "logprobs", "top_logprobs", *PENALTIES),
}
"""By kind of backend: parameters that its speculative path does not serve exactly."""
_INEXACT_SETS = {kind: frozenset(names) for kind, names in INEXACT.items()}
NEUTRAL: dict[str, tuple[Any, ...]] = {"repetition_penalty": (1, 1.0)}
"""Values that change nothing, besides null, false, 0 and empty ones."""


def veto(arm: Arm, state: BackendState, request: GenerateRequest, prompt_tokens: int) -> str | None:
    """Return why `arm` must not serve the request, None where it may."""
    if not state.healthy:
        return state.detail or "not healthy"
    if window_exceeded(state, request, prompt_tokens):
        return f"window of {state.max_model_len} tokens"
    if request.body.get("tools") and state.has_tool_template is False:
        return "no tool template"
    if state.images is False and has_images(request.body.get("messages")):
        return "sees no images"
    if arm.k > 0 and not _INEXACT_SETS.get(state.kind, _INEXACT_SETS["openai"]).isdisjoint(request.body):
        for name in INEXACT.get(state.kind, INEXACT["openai"]):
            if asked_for(request.body, name):
                return f"{name} is not exact there"
    return None


def window_exceeded(state: BackendState, request: GenerateRequest, prompt_tokens: int) -> bool:
    """Return whether prompt and asked-for output exceed the arm's window (max_tokens None: one token must fit)."""
    if state.max_model_len is None:
        return False
    return prompt_tokens + max(1, request.max_tokens or 1) > state.max_model_len


def asked_for(body: Mapping[str, Any], name: str) -> bool:
    """Return whether a parameter is present with a value that changes anything."""
    value = body.get(name)
    return bool(value) and not (isinstance(value, int | float) and value in NEUTRAL.get(name, ()))
