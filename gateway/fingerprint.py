"""Keyed hashes: a request's conversation, its draw in [0, 1), OpenAI's `system_fingerprint`. Pure; for `serve`."""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b

from gateway.types import Arm, GenerateRequest

_LONGEST = 4096


def draw_of(request_id: str, secret: bytes) -> float:
    """Return a number in [0, 1), uniform over requests, that nobody without the secret can foresee."""
    return int.from_bytes(blake2b(request_id.encode(), key=secret, digest_size=7).digest(), "big") / 2**56


def in_share(share: float, request: GenerateRequest, secret: bytes, purpose: bytes) -> bool:
    """Return whether a request is one of a share, drawn by a keyed hash of its own for each purpose (≤ 16 bytes).

    Raising 5 % to 20 % keeps the first 5 % in, and a draw has nothing to do with that for another purpose.
    """
    name = (request.record_id or request.request_id).encode("utf-8", "replace")
    digest = blake2b(name, key=secret[:64], digest_size=6, person=purpose).digest()
    return int.from_bytes(digest, "big") / 2**48 < share


def conversation_of(request: GenerateRequest, secret: bytes) -> str:
    """Return a keyed hash of the conversation, "" where nothing tells one: a first turn is a conversation of its own.

    `prompt_cache_key` names it where the client sends one; else turns are told by what a conversation begins with.
    """
    body = request.body
    named = body.get("prompt_cache_key")
    if isinstance(named, str) and named:
        return _hashed(f"key\0{request.identity.key_id}\0{named}", secret)
    messages = body.get("messages")
    if not isinstance(messages, list) or len(messages) < 3:
        return ""
    if not any(isinstance(turn, dict) and turn.get("role") == "assistant" for turn in messages):
        return ""
    opening = next((turn for turn in messages if isinstance(turn, dict) and turn.get("role") == "user"), None)
    if opening is None:
        return ""
    system = messages[0] if messages[0] is not opening else None
    return _hashed(f"text\0{request.identity.key_id}\0{_text(system)}\0{_text(opening)}", secret)


@lru_cache(maxsize=4096)
def fingerprint_of(arm: Arm, draft: str, version: str) -> str:
    """Return `system_fingerprint`: same arm, draft and engine version, same value."""
    return f"fp_{blake2b(f'{arm}|{draft}|{version}'.encode(), digest_size=5).hexdigest()}"


def end_user_of(request: GenerateRequest, secret: bytes) -> str:
    """Return a keyed hash of the end user that the client names, "" where it names none."""
    body = request.body
    named = body.get("safety_identifier") or body.get("user")
    return hashed_user(named, secret) if isinstance(named, str) and named else ""


def secret_of(given: str) -> bytes:
    """Return the key of all hashes that a text from the settings stands for."""
    return blake2b(given.encode(), digest_size=32).digest()


def hashed_user(named: str, secret: bytes) -> str:
    """Return the keyed hash under which an end user's requests are kept."""
    return _hashed(f"user\0{named}", secret)


def _hashed(text: str, secret: bytes) -> str:
    return blake2b(text.encode("utf-8", "replace"), key=secret, digest_size=8).hexdigest()


def _text(message: object) -> str:
    content = message.get("content") if isinstance(message, dict) else None
    return content[:_LONGEST] if isinstance(content, str) else str(content)[:_LONGEST]
