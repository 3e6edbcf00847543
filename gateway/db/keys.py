"""API keys: made, hashed, checked. `Database` stores them; the gateway's access layer keeps them in memory.

A key is `bk-<key id>-<secret>`. The secret has 256 random bits, so no dictionary or hardware finds it from its hash; it
is therefore hashed with HMAC-SHA256 under a salt of its own rather than with a slow hash, which would let anyone who
sends wrong keys exhaust the gateway's CPU. Only the hash is stored.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from datetime import datetime
from typing import Literal

import msgspec

from gateway.types import Identity

Role = Literal["app", "operator"]
ROLES: tuple[Role, ...] = ("app", "operator")
_TOKEN = re.compile(r"bk-([0-9a-f]{12})-([A-Za-z0-9_-]{43})")


class StoredKey(msgspec.Struct, frozen=True):
    """An API key as stored: everything but its secret."""

    key_id: str
    name: str
    role: Role
    hash: str
    may_force: bool
    requests_per_minute: int | None
    tokens_per_minute: int | None
    created_at: datetime
    revoked_at: datetime | None = None

    @property
    def prefix(self) -> str:
        """What may be shown of the key."""
        return f"bk-{self.key_id}-…"

    def accepts(self, token: str) -> bool:
        """Whether `token` is this key and the key is not revoked; takes the same time for every wrong secret."""
        match = _TOKEN.fullmatch(token)
        if match is None or self.revoked_at is not None or match[1] != self.key_id:
            return False
        salt = self.hash.split("$")[1]
        return hmac.compare_digest(self.hash, _hash(match[2], salt))

    def identity(self) -> Identity:
        """Return who the holder of this key is."""
        limits = (self.requests_per_minute, self.tokens_per_minute)
        return Identity(self.key_id, self.name, self.role, self.may_force, *limits)


def new_key(
    role: Role,
    name: str,
    *,
    created_at: datetime,
    may_force: bool | None = None,
    requests_per_minute: int | None = None,
    tokens_per_minute: int | None = None,
) -> tuple[StoredKey, str]:
    """Make a key: what is stored, and the token, which exists only here. Operators may force paths by default."""
    key_id, secret, salt = secrets.token_hex(6), secrets.token_urlsafe(32), secrets.token_hex(16)
    stored = StoredKey(
        key_id=key_id,
        name=name,
        role=role,
        hash=_hash(secret, salt),
        may_force=role == "operator" if may_force is None else may_force,
        requests_per_minute=requests_per_minute,
        tokens_per_minute=tokens_per_minute,
        created_at=created_at,
    )
    return stored, f"bk-{key_id}-{secret}"


def key_id_of(token: str) -> str | None:
    """Return the key id in a token, None where it is not one of ours."""
    match = _TOKEN.fullmatch(token)
    return match[1] if match else None


def _hash(secret: str, salt: str) -> str:
    digest = hmac.new(bytes.fromhex(salt), secret.encode(), hashlib.sha256).hexdigest()
    return f"hmac-sha256${salt}${digest}"
