"""Which policy is in force, told from gateway to gateway through Redis. Read twice a second by `gateway.policy_reload`.

`breakeven:policy` is `<activation> <hash>` of the newest activation; `breakeven:policy:text:<hash>` holds its text for
a day, so that gateways converge while the database is away. Where that answers, it is the truth and this a hint.
"""

from __future__ import annotations

from gateway.stats.breaker import Breaker
from gateway.stats.connection import connect, guarded

KEY = "breakeven:policy"
TEXT_PREFIX = "breakeven:policy:text:"
KEEP_TEXT_S = 24 * 3600


class PolicyChannel:
    """One per gateway. Every call answers or raises StoreUnavailable within `timeout_s`."""

    def __init__(self, url: str, *, timeout_s: float = 0.5) -> None:
        self._client = connect(url, timeout_s=timeout_s, connections=2)
        self._breaker = Breaker()

    async def publish(self, activation: int, hash: str, text: str) -> None:
        """Tell the others. Raises StoreUnavailable."""
        with guarded(self._breaker):
            async with self._client.pipeline(transaction=True) as pipe:
                pipe.set(TEXT_PREFIX + hash, text.encode("utf-8", "replace"), ex=KEEP_TEXT_S)
                pipe.set(KEY, f"{activation} {hash}")
                await pipe.execute()

    async def latest(self) -> tuple[int, str] | None:
        """Return the newest activation and its hash, None where nothing was told yet. Raises StoreUnavailable."""
        with guarded(self._breaker):
            value = await self._client.get(KEY)
        if not isinstance(value, bytes):
            return None
        number, _, hash = value.decode("ascii", "replace").partition(" ")
        return (int(number), hash) if number.isdecimal() and hash else None

    async def text(self, hash: str) -> str | None:
        """Return the text of a version that was told lately. Raises StoreUnavailable."""
        with guarded(self._breaker):
            value = await self._client.get(TEXT_PREFIX + hash)
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else None

    async def aclose(self) -> None:
        """Close all connections."""
        await self._client.aclose()
