"""Who may ask, and how much: API keys from memory, limits per key. Called by `gateway/api` before anything else.

Keys are read from the database in the background, so that a dead database neither delays nor refuses anyone known.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import os
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec

from gateway.db.keys import StoredKey, key_id_of
from gateway.errors import AuthenticationFailed, PermissionDenied, RateLimited, SettingsError, Unavailable
from gateway.stats import LimitState
from gateway.types import Identity

log = logging.getLogger(__name__)
ANONYMOUS = Identity(key_id="anonymous", name="anonymous", role="operator", may_force=True)
"""Everyone, on loopback, while no key exists."""
_EVERY_S = 1.0
_REMEMBERED = 4096


class Limiter(Protocol):
    """Requests and tokens per minute (`gateway.stats.RateLimiter`)."""

    async def check(self, identity: Identity, tokens: int) -> LimitState:
        """Take one request and a number of tokens."""
        ...

    def settle(self, identity: Identity, reserved: int, used: int) -> None:
        """Correct a reservation."""
        ...


@dataclass(slots=True)
class Admission:
    """A request that was let in: what was reserved for it, and the headers that say so."""

    identity: Identity
    reserved: int = 0
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)


class Access:
    """The keys in memory and the limiter."""

    def __init__(
        self,
        *,
        host: str,
        load: Callable[[], Awaitable[Iterable[StoredKey]]] | None = None,
        limiter: Limiter | None = None,
        defaults: tuple[int | None, int | None] = (None, None),
        cache: Path | None = None,
    ) -> None:
        self._loopback = is_loopback(host)
        self._host = host
        self._load = load
        self._limiter = limiter
        self._defaults = defaults
        self._cache = cache
        self._keys: dict[str, StoredKey] = {}
        self._known: dict[str, Identity] = {}
        self._task: asyncio.Task[None] | None = None
        self.error = "" if load is None else "not read yet"
        """Why the keys in memory may be out of date; empty while they are current."""

    async def start(self) -> None:
        """Read the keys once, then keep them current in the background.

        Raises:
            SettingsError: the address is not loopback and no key exists.
        """
        await self.refresh()
        if not self.error:
            require_keys(self._host, self._keys)
        if self._load is not None:
            self._task = asyncio.create_task(self._refreshing(), name="access keys")

    async def refresh(self) -> None:
        """Read the keys; on failure the last ones stay."""
        if self._load is None:
            return
        try:
            keys = {key.key_id: key for key in await self._load()}
        except Exception as error:
            if not self.error or self.error == "not read yet":
                log.warning("API keys cannot be read: %s", error)
            self.error = str(error) or type(error).__name__
            if not self._keys:
                self._keys = _read_cache(self._cache)
        else:
            self.error = ""
            if keys != self._keys:
                self._keys, self._known = keys, {}
                _write_cache(self._cache, keys)

    async def _refreshing(self) -> None:
        while True:
            await asyncio.sleep(_EVERY_S)
            await self.refresh()

    async def aclose(self) -> None:
        """Stop reading."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    @property
    def open_to_all(self) -> bool:
        """Whether no key is needed: on loopback, while none exists."""
        return self._loopback and not self._keys

    def identify(self, headers: Mapping[str, str]) -> Identity:
        """Return who asks.

        Raises:
            AuthenticationFailed: no key, an unknown one or a revoked one.
        """
        if self.open_to_all:
            return ANONYMOUS
        scheme, _, secret = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not secret.strip():
            message = "an API key is required: send it as `Authorization: Bearer KEY`"
            raise AuthenticationFailed(message, code="missing_api_key", headers={"www-authenticate": "Bearer"})
        token = secret.strip()
        known = self._known.get(token)
        if known is not None:
            return known
        stored = self._keys.get(key_id_of(token) or "")
        if stored is None and self.error:
            message = f"API keys cannot be checked now: {self.error}"
            raise Unavailable(message, code="keys_unavailable", headers={"retry-after": "1"})
        if stored is None or not stored.accepts(token):
            raise AuthenticationFailed("unknown or revoked API key", code="invalid_api_key")
        return self._remember(token, stored.identity())

    def _remember(self, token: str, identity: Identity) -> Identity:
        """Keep an accepted token in memory until the keys change, so that it is hashed once."""
        requests, tokens = self._defaults
        identity = msgspec.structs.replace(
            identity,
            requests_per_minute=identity.requests_per_minute or requests,
            tokens_per_minute=identity.tokens_per_minute or tokens,
        )
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        self._known[token] = identity
        return identity

    def operator(self, headers: Mapping[str, str]) -> Identity:
        """Return who asks, who must be an operator. Raises AuthenticationFailed or PermissionDenied."""
        identity = self.identify(headers)
        if identity.role != "operator":
            raise PermissionDenied("this needs a key with the operator role", code="operator_only")
        return identity

    async def admit(self, identity: Identity, tokens: int) -> Admission:
        """Take one request and `tokens` tokens from the key's budgets.

        Raises:
            RateLimited: one of them is used up.
        """
        if self._limiter is None or not (identity.requests_per_minute or identity.tokens_per_minute):
            return Admission(identity)
        state = await self._limiter.check(identity, tokens)
        headers = list(limit_headers(state))
        if not state.allowed:
            told = {name.decode(): value.decode() for name, value in headers}
            told["retry-after"] = str(max(1, -int(-state.retry_after_s // 1)))
            told["retry-after-ms"] = str(max(1, int(state.retry_after_s * 1000) + 1))
            limit = state.limit_requests if state.limited_by == "requests" else state.limit_tokens
            message = f"over the key's limit of {limit} {state.limited_by} per minute"
            raise RateLimited(message, code="rate_limit_exceeded", headers=told)
        return Admission(identity, tokens, headers)

    def settle(self, admission: Admission, used: int) -> None:
        """Give back, or take, the difference to what was really used."""
        if self._limiter is not None and admission.reserved:
            self._limiter.settle(admission.identity, admission.reserved, used)


def _read_cache(path: Path | None) -> dict[str, StoredKey]:
    """Return the keys (hashes only) as last seen, for a start while the database is away; empty where none were."""
    if path is None:
        return {}
    try:
        keys = msgspec.json.decode(path.read_bytes(), type=list[StoredKey])
    except (OSError, msgspec.MsgspecError):
        return {}
    return {key.key_id: key for key in keys}


def _write_cache(path: Path | None, keys: Mapping[str, StoredKey]) -> None:
    if path is None:
        return
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(".new")
        with open(fresh, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(msgspec.json.encode(list(keys.values())))
        fresh.replace(path)


def limit_headers(state: LimitState) -> list[tuple[bytes, bytes]]:
    """Return OpenAI's `x-ratelimit-*` headers; resets are durations such as `12ms` or `1m3s`."""
    headers = []
    for what, limit, remaining, reset in (
        ("requests", state.limit_requests, state.remaining_requests, state.reset_requests_s),
        ("tokens", state.limit_tokens, state.remaining_tokens, state.reset_tokens_s),
    ):
        if limit is not None:
            headers.append((f"x-ratelimit-limit-{what}".encode(), b"%d" % limit))
            headers.append((f"x-ratelimit-remaining-{what}".encode(), b"%d" % (remaining or 0)))
            headers.append((f"x-ratelimit-reset-{what}".encode(), duration(reset or 0.0).encode()))
    return headers


def duration(seconds: float) -> str:
    """Write a duration as OpenAI does: `0s`, `12ms`, `1.5s`, `1m3s`."""
    if seconds < 1:
        return f"{round(seconds * 1000)}ms" if seconds > 0 else "0s"
    minutes, rest = divmod(seconds, 60)
    return f"{int(minutes)}m{rest:.0f}s" if minutes else f"{rest:.3g}s"


def require_keys(host: str, keys: Collection[object]) -> None:
    """Refuse an address that others can reach while no key exists. Raises SettingsError."""
    if not keys and not is_loopback(host):
        raise SettingsError(
            f"refusing to listen on {host} without API keys: create one with `breakeven keys create`, "
            "or listen on 127.0.0.1"
        )


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
