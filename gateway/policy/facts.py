"""Everything about a request that a rule's `when` can look at. Built by `serve.py` once per request; pure."""

from __future__ import annotations

from collections.abc import Collection
from hashlib import blake2b
from typing import Any

import msgspec

from gateway.types import Classification, GenerateRequest

_ADAPTER_FIELDS = ("adapter", "adapter_id", "lora_path")
_IMAGE_PARTS = frozenset({"image_url", "input_image", "image"})


class Facts(msgspec.Struct, frozen=True):
    """What is known of one request when its rule is looked up."""

    task: str = "chat"
    key: str = ""
    """The API key's id."""
    app: str = ""
    """The API key's name."""
    model: str = ""
    adapter: str = ""
    """LoRA adapter: `adapter`, `adapter_id` or `lora_path` in the body, or what follows `:` in the model's name."""
    headers: dict[str, str] = {}
    """In lower case."""
    temperature: float = 1.0
    seed: bool = False
    """Whether the request sets a seed."""
    prompt_tokens: int = 0
    images: bool = False
    stream: bool = False
    service_tier: str = "auto"
    at: float = 0.0
    """Unix time of arrival."""
    load: int = 0
    """Sequences running on the backends, as the gateway sees it."""
    endpoint: str = "chat"
    share: float = 0.0
    """Uniform in [0, 1), the same for all requests of a conversation: what `when: {share: 5%}` looks at."""


def facts_of(
    request: GenerateRequest,
    classification: Classification,
    *,
    load: int,
    prompt_tokens: int,
    conversation: str = "",
) -> Facts:
    """Collect the facts of a validated request. Without a `conversation` each request draws its own `share`."""
    body = request.body
    tier = body.get("service_tier")
    return Facts(
        task=classification.task,
        key=request.identity.key_id,
        app=request.identity.name,
        model=request.model,
        adapter=_adapter(request.model, body),
        headers=request.headers,
        temperature=request.temperature,
        seed=body.get("seed") is not None,
        prompt_tokens=prompt_tokens,
        images=has_images(body.get("messages")),
        stream=request.stream,
        service_tier=tier if isinstance(tier, str) and tier else "auto",
        at=request.arrived_at,
        load=load,
        endpoint=request.endpoint,
        share=share_of(conversation or request.request_id),
    )


def within(found: Classification, tasks: Collection[str], fallback: str, declared: str | None) -> Classification:
    """Return a classification whose task is one of the policy's.

    A policy may have tasks that its classifier was not trained on: then a declared one counts as declared, and what the
    classifier makes of the others is the fallback task.
    """
    if declared is not None and declared in tasks and found.task != declared:
        return msgspec.structs.replace(found, task=declared, confidence=1.0, source="declared")
    if found.task in tasks:
        return found
    return msgspec.structs.replace(found, task=fallback, source="fallback")


def share_of(conversation: str) -> float:
    """Return the conversation's place in [0, 1): a hash, so that 5 % of traffic is part of the later 20 %."""
    digest = blake2b(conversation.encode("utf-8", "replace"), digest_size=6, person=b"policy-share").digest()
    return int.from_bytes(digest, "big") / 2**48


def has_images(messages: object) -> bool:
    """Return whether any message has an image part; tolerant of every shape."""
    if not isinstance(messages, list):
        return False
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else ():
            if isinstance(part, dict) and part.get("type") in _IMAGE_PARTS:
                return True
    return False


def _adapter(model: str, body: dict[str, Any]) -> str:
    """Return the adapter's name, or an empty string."""
    for name in _ADAPTER_FIELDS:
        value = body.get(name)
        if isinstance(value, str) and value:
            return value
    return model.partition(":")[2]
