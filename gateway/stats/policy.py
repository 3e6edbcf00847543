"""Which policy is in force, told from gateway to gateway through Redis. Read twice a second by `gateway.policy_reload`.

`breakeven:policy` is `<activation> <hash>` of the newest activation; `breakeven:policy:text:<hash>` holds its text for
a day, so that gateways converge while the database is away. The database stays the truth.
"""

from __future__ import annotations

from gateway.stats.breaker import Breaker
from gateway.stats.connection import connect, guarded

KEY = "breakeven:policy"
TEXT_PREFIX = "breakeven:policy:text:"
KEEP_TEXT_S = 24 * 3600
_PUBLISH = """
local before = tonumber(string.match(redis.call('GET', KEYS[1]) or '', '^%d+')) or 0
if tonumber(ARGV[1]) < before then return 0 end
redis.call('SET', KEYS[2], ARGV[3], 'EX', ARGV[4])
redis.call('SET', KEYS[1], ARGV[1] .. ' ' .. ARGV[2])
return 1
"""


class PolicyChannel:
    """One per gateway. Every call answers or raises StoreUnavailable within `timeout_s`."""

    def __init__(self, url: str, *, timeout_s: float = 0.5) -> None:
        self._client = connect(url, timeout_s=timeout_s, connections=2)
        self._breaker = Breaker()
        self._publish = self._client.register_script(_PUBLISH)

    async def publish(self, activation: int, hash: str, text: str) -> bool:
        """Tell the others; an older activation never replaces a newer one. Raises StoreUnavailable."""
        with guarded(self._breaker):
            keys = [KEY, TEXT_PREFIX + hash]
            return bool(await self._publish(keys=keys, args=[activation, hash, text, KEEP_TEXT_S]))

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
