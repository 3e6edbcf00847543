"""Which application a request comes from, as far as statistics below the task are kept for it. Called by `serve`.

An application is an API key with its system prompt. Prompts that carry dates or names would make ever new ones, so that
each gateway follows the few most frequent of a task only (J. Misra, D. Gries, Sci. Comput. Program. 2, 1982), and those
only where there are at least two. Whether they differ is for `gateway.routing.applications` to say.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

from gateway.types import GenerateRequest

MOST = 8
"""Applications of a task that are followed."""
LEAST = 8
"""Requests, less those of all the others that were not followed, from which an application is one."""
_PROMPT = 2000
"""Characters of a system prompt that tell it from others."""


class Applications:
    """One per gateway: who is followed. Costs a few microseconds a request."""

    def __init__(self) -> None:
        self._counts: dict[str, dict[str, int]] = {}

    def of(self, request: GenerateRequest, task: str) -> str:
        """Count a request; return its application, empty where that is not followed or the only one."""
        name = application_of(request)
        counts = self._counts.setdefault(task, {})
        if name in counts or len(counts) < MOST:
            counts[name] = counts.get(name, 0) + 1
        else:
            self._counts[task] = {other: count - 1 for other, count in counts.items() if count > 1}
            return ""
        return name if counts[name] >= LEAST and sum([count >= LEAST for count in counts.values()]) > 1 else ""


def application_of(request: GenerateRequest) -> str:
    """Return a short hash of the API key and of the system prompt."""
    prompt = ""
    messages = request.body.get("messages")
    first = messages[0] if isinstance(messages, list) and messages else None
    if isinstance(first, dict) and first.get("role") in ("system", "developer"):
        prompt = str(first.get("content") or "")[:_PROMPT]
    return _name_of(request.identity.key_id, prompt)


@lru_cache(maxsize=256)
def _name_of(key_id: str, prompt: str) -> str:
    text = f"{key_id}\0{prompt}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=4, person=b"application").hexdigest()
